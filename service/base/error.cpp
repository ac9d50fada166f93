#include "base/error.hpp"

#include "base/assert.hpp"

#include <stdexcept>

namespace gradsync {

void throw_exception_from_error(const Error& error, const boost::source_location& where) {
  throw std::logic_error(std::string(where.file_name()) + ": unchecked error: " + error.message);
}

const char* kind_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::ParseError:
      return "parse_error";
    case ErrorCode::InvalidRequest:
      return "invalid_request";
    case ErrorCode::MethodNotFound:
      return "method_not_found";
    case ErrorCode::InvalidParams:
      return "invalid_params";
    case ErrorCode::InternalError:
      return "internal_error";
    case ErrorCode::NotInitialized:
      return "not_initialized";
    case ErrorCode::VersionMismatch:
      return "version_mismatch";
    case ErrorCode::LocalOnly:
      return "local_only";
    case ErrorCode::Unauthorized:
      return "unauthorized";
    case ErrorCode::Draining:
      return "draining";
    case ErrorCode::LimitExceeded:
      return "limit_exceeded";
    case ErrorCode::NotAttached:
      return "not_attached";
    case ErrorCode::UnknownJob:
      return "unknown_job";
    case ErrorCode::RankInUse:
      return "rank_in_use";
    case ErrorCode::JobMismatch:
      return "job_mismatch";
    case ErrorCode::Superseded:
      return "superseded";
    case ErrorCode::RankLost:
      return "rank_lost";
    case ErrorCode::NoPeers:
      return "no_peers";
    case ErrorCode::NodeRefused:
      return "node_refused";
    case ErrorCode::NodeLost:
      return "node_lost";
    case ErrorCode::UnknownBuffer:
      return "unknown_buffer";
    case ErrorCode::InsufficientMemory:
      return "insufficient_memory";
    case ErrorCode::BadToken:
      return "bad_token";
    case ErrorCode::NoGpu:
      return "no_gpu";
    case ErrorCode::ImportRefused:
      return "import_refused";
    case ErrorCode::InvalidDeclaration:
      return "invalid_declaration";
    case ErrorCode::UnsupportedPlacement:
      return "unsupported_placement";
    case ErrorCode::PlanMismatch:
      return "plan_mismatch";
    case ErrorCode::WeightsDiverged:
      return "weights_diverged";
    case ErrorCode::DeclareTimeout:
      return "declare_timeout";
    case ErrorCode::NotDeclared:
      return "not_declared";
    case ErrorCode::NotReady:
      return "not_ready";
    case ErrorCode::StepMismatch:
      return "step_mismatch";
    case ErrorCode::StepTimeout:
      return "step_timeout";
    case ErrorCode::StaleEpoch:
      return "stale_epoch";
    case ErrorCode::StaleAttempt:
      return "stale_attempt";
    case ErrorCode::DuplicateReady:
      return "duplicate_ready";
    case ErrorCode::StepFailed:
      return "step_failed";
    case ErrorCode::StepInDoubt:
      return "step_in_doubt";
    case ErrorCode::UnknownSubscription:
      return "unknown_subscription";
    case ErrorCode::DoctorFailed:
      return "doctor_failed";
  }
  GRADSYNC_ASSERT(false, "an ErrorCode without a kind");
}

}  // namespace gradsync
