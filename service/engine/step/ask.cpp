#include "engine/step/ask.hpp"

#include "base/assert.hpp"
#include "base/text/hash.hpp"

#include <fmt/format.h>

namespace gradsync::engine {

namespace {

std::string text_of(bool given, const std::optional<double>& max_norm) {
  if (!given) {
    return "as declared";
  }
  return max_norm ? fmt::format("{}", *max_norm) : "none";
}

std::string difference(std::int64_t rank, const Ask& ask, std::int64_t other_rank, const Ask& other) {
  if (other.kind != ask.kind) {
    return fmt::format(
        "rank {} called {} and rank {} called {}", other_rank, method_of(other.kind), rank, method_of(ask.kind)
    );
  }
  if (other.step != ask.step) {
    return fmt::format("rank {} finishes step {} and rank {} step {}", other_rank, other.step, rank, ask.step);
  }
  if (other.scale != ask.scale) {
    return fmt::format("rank {} gave scale {} and rank {} scale {}", other_rank, other.scale, rank, ask.scale);
  }
  if (other.scaled != ask.scaled) {
    return fmt::format(
        "rank {} has a loss scaler and rank {} none", ask.scaled ? rank : other_rank, ask.scaled ? other_rank : rank
    );
  }
  if (other.abandon != ask.abandon) {
    return fmt::format(
        "rank {} abandons the step and rank {} clips", ask.abandon ? rank : other_rank, ask.abandon ? other_rank : rank
    );
  }
  if (other.state_digest != ask.state_digest) {
    return fmt::format(
        "rank {} imports a state with digest {} and rank {} one with {}",
        other_rank,
        other.state_digest,
        rank,
        ask.state_digest
    );
  }
  if (!same_terms(ask, other)) {
    return fmt::format(
        "rank {} gave max_norm {} and rank {} max_norm {}",
        other_rank,
        text_of(other.override_max_norm, other.max_norm),
        rank,
        text_of(ask.override_max_norm, ask.max_norm)
    );
  }
  return {};
}

}  // namespace

const char* method_of(Ask::Kind kind) {
  switch (kind) {
    case Ask::Kind::Finish:
      return "step.finish";
    case Ask::Kind::NormOnly:
      return "norm.compute";
    case Ask::Kind::Clip:
      return "clip.apply";
    case Ask::Kind::Import:
      return "policy.import";
  }
  GRADSYNC_ASSERT(false, "an Ask without a method");
}

Ask make_ask(const FinishRequest& request, TimePoint now, TimePoint deadline) {
  Ask ask;
  ask.kind = request.kind == FinishKind::Finish ? Ask::Kind::Finish : Ask::Kind::NormOnly;
  ask.step = request.step;
  ask.scale = request.scale;
  ask.scaled = request.scaled;
  ask.override_max_norm = request.override_max_norm;
  ask.max_norm = request.max_norm;
  ask.since = now;
  ask.half = now + (deadline - now) / 2;
  ask.deadline = deadline;
  return ask;
}

Ask make_ask(const ClipRequest& request, TimePoint now, TimePoint deadline) {
  Ask ask;
  ask.kind = Ask::Kind::Clip;
  ask.step = request.step;
  ask.abandon = request.abandon;
  ask.override_max_norm = request.override_max_norm;
  ask.max_norm = request.max_norm;
  ask.since = now;
  ask.half = now + (deadline - now) / 2;
  ask.deadline = deadline;
  return ask;
}

Ask make_ask(const ImportRequest& request, TimePoint now, TimePoint deadline) {
  Ask ask;
  ask.kind = Ask::Kind::Import;
  ask.state_digest = digest(request.state);
  ask.since = now;
  ask.half = now + (deadline - now) / 2;
  ask.deadline = deadline;
  return ask;
}

bool same_terms(const Ask& a, const Ask& b) {
  return a.kind == b.kind && a.step == b.step && a.scale == b.scale && a.scaled == b.scaled && a.abandon == b.abandon &&
         a.override_max_norm == b.override_max_norm && a.max_norm == b.max_norm && a.state_digest == b.state_digest;
}

std::optional<Error> mismatch(std::int64_t rank, const Ask& ask, std::int64_t other_rank, const Ask& other) {
  std::string what = difference(rank, ask, other_rank, other);
  if (what.empty()) {
    return std::nullopt;
  }
  Error error = make_error(
      ErrorCode::StepMismatch, std::move(what), "every rank must finish the same step with the same arguments"
  );
  error.ranks = {other_rank, rank};
  error.step = ask.step;
  return error;
}

}  // namespace gradsync::engine
