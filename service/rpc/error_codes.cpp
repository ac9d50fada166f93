#include "rpc/error_codes.hpp"

#include "base/assert.hpp"
#include "base/error_page.hpp"
#include "rpc/json/codec.hpp"

#include <array>

namespace gradsync::rpc {

namespace {

using enum ErrorCode;

constexpr std::array kRows{
    ErrorRow{ParseError, -32700, 400, false, "send one JSON value per text frame"},
    ErrorRow{
        InvalidRequest,
        -32600,
        400,
        false,
        "send {\"jsonrpc\": \"2.0\", \"id\", \"method\", \"params\"} with a fresh id"},
    ErrorRow{MethodNotFound, -32601, 404, false, "rpc.discover lists the methods"},
    ErrorRow{InvalidParams, -32602, 400, false, "see data.path, and docs/protocol.md for the method"},
    ErrorRow{InternalError, -32603, 500, false, "a defect of the daemon: report it with the daemon's log"},

    ErrorRow{NotInitialized, 1001, 409, false, "call session.initialize first"},
    ErrorRow{VersionMismatch, 1002, 426, false, "install the same release of gradsync and gradsyncd"},
    ErrorRow{LocalOnly, 1003, 403, false, "connect a WebSocket to the unix socket"},
    ErrorRow{Unauthorized, 1004, 401, false, "run as the daemon's uid or root, or send its token"},
    ErrorRow{Draining, 1005, 503, true, "the daemon is shutting down: reconnect when it is back"},
    ErrorRow{
        LimitExceeded, 1006, 429, false, "the message names the limit: ask for less, or raise it in the configuration"},

    ErrorRow{NotAttached, 1101, 409, false, "call job.attach first"},
    ErrorRow{UnknownJob, 1102, 404, false, "status.get lists the jobs you may see"},
    ErrorRow{RankInUse, 1103, 409, true, "end the process that holds the rank, or attach with a higher restart_count"},
    ErrorRow{JobMismatch, 1104, 409, false, "use the world size and meshes of the other ranks, or another job name"},
    ErrorRow{Superseded, 1105, 410, false, "a newer process took this rank: end this one"},
    ErrorRow{RankLost, 1106, 409, true, "restart the lost rank; when it is attached, declare again and redo the step"},
    ErrorRow{
        NoPeers, 1107, 501, false, "set [peer] listen and token_file on every node, or attach all ranks on this one"},
    ErrorRow{
        NodeRefused,
        1108,
        403,
        false,
        "the message has both addresses: name one of rank 0's node that all nodes reach"},
    ErrorRow{NodeLost, 1109, 409, true, "when the node is back, declare again and redo the step"},

    ErrorRow{UnknownBuffer, 1201, 404, false, "use an id that buffers.allocate gave to this rank"},
    ErrorRow{InsufficientMemory, 1202, 507, true, "free memory or raise the memory limit of the daemon's cgroup"},
    ErrorRow{
        BadToken, 1203, 403, false, "allocate again and fetch the descriptor within 10 s, once, from the same process"},
    ErrorRow{NoGpu, 1204, 501, false, "give the daemon the GPU, or keep the gradients on the CPU"},
    ErrorRow{ImportRefused, 1205, 502, true, "gradsync.alloc_grad_buffer() gives memory that can be shared"},

    ErrorRow{InvalidDeclaration, 1301, 422, false, "correct the tensor that data.path names"},
    ErrorRow{
        UnsupportedPlacement,
        1302,
        501,
        false,
        "on data path stats the framework has reduced: declare what is left, or use data path arena"},
    ErrorRow{
        PlanMismatch,
        1303,
        409,
        false,
        "every rank declares what its placements say that it holds, with the same options"},
    ErrorRow{WeightsDiverged, 1304, 409, false, "start from one checkpoint, or broadcast the weights before declaring"},
    ErrorRow{DeclareTimeout, 1305, 504, true, "see which ranks are missing in data.ranks, then declare again"},

    ErrorRow{NotDeclared, 1401, 409, false, "call gradients.declare and wait for its answer"},
    ErrorRow{NotReady, 1402, 409, false, "report the tensors in data.tensors as ready or unused"},
    ErrorRow{StepMismatch, 1403, 409, true, "make every rank ask for the same step with the same arguments"},
    ErrorRow{StepTimeout, 1404, 504, true, "data.ranks are missing: see what they do, or job.pause during long work"},
    ErrorRow{StaleEpoch, 1405, 409, true, "declare again; data.epoch is the epoch to use"},
    ErrorRow{StaleAttempt, 1406, 409, true, "use data.attempt from now on"},
    ErrorRow{DuplicateReady, 1407, 409, false, "report each bucket once per attempt"},
    ErrorRow{StepFailed, 1408, 500, true, "the step's gradients are lost: compute them again"},
    ErrorRow{StepInDoubt, 1409, 409, false, "go on from a checkpoint: some ranks may have taken the step"},

    ErrorRow{UnknownSubscription, 1501, 404, false, "use an id that events.subscribe gave on this connection"},

    ErrorRow{DoctorFailed, 1601, 502, true, "run gradsyncd doctor by hand, where the daemon runs"},
};

template <typename T>
void write_if(JsonWriter& writer, std::string_view name, const T& value, bool present) {
  if (present) {
    writer.key(name);
    Codec<T>::write(writer, value);
  }
}

template <typename T>
void write_if(JsonWriter& writer, std::string_view name, const std::optional<T>& value) {
  if (value) {
    writer.key(name);
    Codec<T>::write(writer, *value);
  }
}

}  // namespace

std::span<const ErrorRow> error_rows() { return kRows; }

const ErrorRow& row_of(ErrorCode code) {
  for (const ErrorRow& row : kRows) {
    if (row.code == code) {
      return row;
    }
  }
  GRADSYNC_ASSERT(false, "an ErrorCode without a row in the table");
}

std::string error_json(const Error& error) {
  const ErrorRow& row = row_of(error.code);
  JsonWriter writer;
  writer.begin_object();
  writer.key("code");
  writer.value(static_cast<std::int64_t>(row.json_rpc));
  writer.key("message");
  writer.value(std::string_view(error.message));
  writer.key("data");
  writer.begin_object();
  writer.key("kind");
  writer.value(std::string_view(kind_of(error.code)));
  writer.key("retryable");
  writer.value(row.retryable);
  writer.key("hint");
  const std::string_view hint = error.hint.empty() ? std::string_view(row.hint) : std::string_view(error.hint);
  writer.value(std::string_view(with_page(hint, error.code)));
  write_if(writer, "path", error.path, !error.path.empty());
  write_if(writer, "job", error.job, !error.job.empty());
  write_if(writer, "tensor", error.tensor, !error.tensor.empty());
  write_if(writer, "node", error.node, !error.node.empty());
  write_if(writer, "ranks", error.ranks, !error.ranks.empty());
  write_if(writer, "tensors", error.tensors, !error.tensors.empty());
  write_if(writer, "rank", error.rank);
  write_if(writer, "step", error.step);
  write_if(writer, "bucket", error.bucket);
  write_if(writer, "epoch", error.epoch);
  write_if(writer, "attempt", error.attempt);
  write_if(writer, "waited_s", error.waited_s);
  writer.end_object();
  writer.end_object();
  return writer.take();
}

std::string error_table_json() {
  Json table = Json::array();
  for (const ErrorRow& row : kRows) {
    table.push_back(Json{
        {"kind", kind_of(row.code)},
        {"code", row.json_rpc},
        {"http", row.http},
        {"retryable", row.retryable},
        {"hint", with_page(row.hint, row.code)}});
  }
  return table.dump(2) + "\n";
}

}  // namespace gradsync::rpc
