#pragma once
// The one error type of the service. An `Error` travels unchanged from the layer that found the problem to the reply
// that reports it; `rpc/error_codes.cpp` maps each code to its JSON-RPC number, HTTP status, kind and retryability.
// `message` says what was found and what was expected, `hint` what to do next, `path` the wire name of the field.

#include <boost/system/result.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync {

/// Every error that can reach a client. The snake_case spelling of the name is its `kind` on the wire.
enum class ErrorCode {
  // JSON-RPC 2.0
  ParseError,      ///< the text is not JSON, or breaks a limit of the strict reader (depth, duplicate keys, UTF-8)
  InvalidRequest,  ///< JSON, but not a request object; a reused or null id; an empty or too large batch
  MethodNotFound,  ///< no such method
  InvalidParams,   ///< a field is missing, unknown, of the wrong type or out of range
  InternalError,   ///< a defect of the daemon
  // session
  NotInitialized,   ///< `session.initialize` must come first
  VersionMismatch,  ///< protocol versions differ
  LocalOnly,        ///< the method needs a WebSocket on the unix socket
  Unauthorized,     ///< uid not allowed, or bearer token missing or wrong
  Draining,         ///< the daemon is shutting down and accepts no new work
  LimitExceeded,    ///< a quota is used up; the message names the limit and its value
  // job
  NotAttached,  ///< the connection has no rank of a job
  UnknownJob,   ///< no job of that name is visible to the caller
  RankInUse,    ///< a live process already holds this rank
  JobMismatch,  ///< world size or meshes differ from those of ranks already attached
  Superseded,   ///< a newer attach took this rank over
  RankLost,     ///< a rank of the job died or left
  NoPeers,      ///< the job has ranks on other nodes, and this daemon is not set up for that
  NodeRefused,  ///< a node may not take part, because of its address or of how it is reached
  NodeLost,     ///< a node of the job, or the link to it, is gone
  // buffers
  UnknownBuffer,       ///< no such buffer in this session
  InsufficientMemory,  ///< an allocation beyond what the machine or its cgroup can give
  BadToken,            ///< fd token unknown, used, expired or of another process
  NoGpu,               ///< the daemon has no worker for this GPU, and no way to start one
  ImportRefused,       ///< memory of a GPU could not be mapped by its worker
  // declaration
  InvalidDeclaration,    ///< a tensor's shape, placement or options contradict themselves or its mesh
  UnsupportedPlacement,  ///< valid, but not implemented on this data path
  PlanMismatch,          ///< ranks declared different things; names the first difference
  WeightsDiverged,       ///< weights declared as replicated differ between ranks
  DeclareTimeout,        ///< not all ranks declared in time
  // step
  NotDeclared,     ///< a step call before a committed declaration
  NotReady,        ///< finish with tensors that are neither ready nor unused; names them
  StepMismatch,    ///< ranks disagree on step, scale, max_norm, mode or call
  StepTimeout,     ///< the deadline passed; names missing ranks and tensors
  StaleEpoch,      ///< the message belongs to another epoch
  StaleAttempt,    ///< the message belongs to another attempt of the epoch
  DuplicateReady,  ///< a bucket was reported ready twice in one attempt
  StepFailed,      ///< the lane failed; the step's gradients are lost
  StepInDoubt,     ///< nobody can say whether the step was done: the node that knew is gone
  // events
  UnknownSubscription,  ///< no such subscription on this connection
  // doctor
  DoctorFailed,  ///< the process that examines the node did not start, or ended without findings
};

struct Error {
  ErrorCode code = ErrorCode::InternalError;
  std::string message;
  std::string hint;  ///< the next thing to try; may be empty
  std::string path;  ///< wire name of the field at fault, like `tensors[3].shape`; may be empty
  std::string job;
  std::string tensor;
  std::string node;                  ///< host name of the node at fault or missing; empty on one node
  std::vector<std::int64_t> ranks;   ///< ranks at fault or missing
  std::vector<std::string> tensors;  ///< tensors missing or at fault (at most 20 named)
  std::optional<std::int64_t> rank;
  std::optional<std::int64_t> step;
  std::optional<std::int64_t> bucket;
  std::optional<std::uint64_t> epoch;    ///< the epoch to use from now on
  std::optional<std::uint64_t> attempt;  ///< the attempt to use from now on
  std::optional<double> waited_s;

  friend bool operator==(const Error&, const Error&) = default;
};

template <typename T>
using Result = boost::system::result<T, Error>;

/// Needed by `Result::value()`; the house style tests a result and uses `*`, so this only ever fires on a defect.
[[noreturn]] void throw_exception_from_error(const Error& error, const boost::source_location& where);

[[nodiscard]] inline Error make_error(ErrorCode code, std::string message, std::string hint = {}) {
  Error error;
  error.code = code;
  error.message = std::move(message);
  error.hint = std::move(hint);
  return error;
}

[[nodiscard]] inline Error invalid_params(std::string path, std::string message, std::string hint = {}) {
  Error error = make_error(ErrorCode::InvalidParams, std::move(message), std::move(hint));
  error.path = std::move(path);
  return error;
}

/// The kind of a code on the wire: `ErrorCode::RankLost` → "rank_lost".
[[nodiscard]] const char* kind_of(ErrorCode code);

}  // namespace gradsync
