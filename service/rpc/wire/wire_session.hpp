#pragma once
// Params and results of session.*, job.* and buffers.*: plain values with wire names.

#include "plan/mesh/mesh.hpp"
#include "rpc/json/codec.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::rpc {

/// Params or result without a field: `{}`.
struct Empty {};

struct ClientIdentity {
  std::string name;
  std::string version;
};

struct InitializeParams {
  std::int64_t protocol = 0;
  ClientIdentity client;
  std::string client_id;
  std::int64_t pid = 0;
  std::string boot_id;

  /// A client of another protocol may send other fields, so its version is looked at before anything else.
  [[nodiscard]] static Result<void> check_before_reading(Value params);
};

struct ServerAnswer {
  std::string name;
  std::string version;
  std::int64_t pid = 0;
  std::string boot_id;
};

struct PlacementsAnswer {
  std::vector<std::string> arena;
  std::vector<std::string> stats;
};

struct Capabilities {
  std::vector<std::string> data_paths;
  std::vector<std::string> dtypes;
  std::vector<std::string> modes;
  PlacementsAnswer placements;
};

struct LimitsAnswer {
  std::uint64_t message_bytes = 0;
  std::uint64_t depth = 0;
  std::uint64_t batch_items = 0;
  std::int64_t sessions = 0;
  std::int64_t buffers_per_session = 0;
  std::int64_t tensors = 0;
  std::uint64_t subscriptions = 0;
  double declare_s = 0;
  double first_step_s = 0;
  double step_s = 0;
};

struct InitializeResult {
  std::int64_t protocol = 0;
  ServerAnswer server;
  std::string incarnation;
  Capabilities capabilities;
  LimitsAnswer limits;
};

struct AttachParams {
  std::string job;
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::vector<plan::Mesh> meshes;
  std::int64_t restart_count = 0;
  std::int64_t local_world_size = 0;
  std::string coordinator;
};

struct AttachAnswer {
  std::uint64_t session = 0;
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::int64_t last_step = -1;
  bool resumed = false;
};

struct PauseParams {
  bool paused = false;
};

struct AllocateParams {
  std::uint64_t bytes = 0;
  std::string device;
};

struct AllocateAnswer {
  std::uint64_t buffer = 0;
  std::uint64_t bytes = 0;
  std::string token;
};

struct RegisterParams {
  std::string transport;
  std::string device;
  std::string handle;
  std::uint64_t base = 0;
  std::uint64_t allocation_bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t generation = 0;
};

struct RegisterAnswer {
  std::uint64_t buffer = 0;
  std::uint64_t bytes = 0;
};

struct ProbeParams {
  std::string transport;
  std::string device;
  std::string handle;
  std::uint64_t allocation_bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct ProbeAnswer {
  std::uint64_t mapped_bytes = 0;
  std::string read;
  double open_s = 0;
  double copy_s = 0;
  double close_s = 0;
};

struct ReleaseParams {
  std::uint64_t buffer = 0;
};

template <>
struct Fields<Empty> {
  static constexpr const char* kName = "Empty";

  static void visit(auto&, auto&) {}
};

template <>
struct Fields<ClientIdentity> {
  static constexpr const char* kName = "Client";

  static void visit(auto& v, auto& s) {
    v.required("name", s.name, "program or library", kNameLength);
    v.required("version", s.version, "its version", kNameLength);
  }
};

template <>
struct Fields<InitializeParams> {
  static constexpr const char* kName = "InitializeParams";

  static void visit(auto& v, auto& s) {
    v.required("protocol", s.protocol, "the protocol the client speaks: 1");
    v.required("client", s.client, "what connects");
    v.required("client_id", s.client_id, "random text of the client process: equal after a reconnect", Bounds{1, 64});
    v.required("pid", s.pid, "the client's own view of its pid; the kernel's word counts", kNatural);
    v.required("boot_id", s.boot_id, "/proc/sys/kernel/random/boot_id, or empty", Bounds{0, 64});
  }
};

template <>
struct Fields<ServerAnswer> {
  static constexpr const char* kName = "Server";

  static void visit(auto& v, auto& s) {
    v.required("name", s.name, "gradsyncd");
    v.required("version", s.version, "of the daemon");
    v.required("pid", s.pid, "of the daemon");
    v.required("boot_id", s.boot_id, "of the machine");
  }
};

template <>
struct Fields<PlacementsAnswer> {
  static constexpr const char* kName = "Placements";

  static void visit(auto& v, auto& s) {
    v.required("arena", s.arena, "what can be synchronised");
    v.required("stats", s.stats, "what the norm of reduced gradients can be of");
  }
};

template <>
struct Fields<Capabilities> {
  static constexpr const char* kName = "Capabilities";

  static void visit(auto& v, auto& s) {
    v.required("data_paths", s.data_paths, "ways to hand over gradients");
    v.required("dtypes", s.dtypes, "element types");
    v.required("modes", s.modes, "clip modes");
    v.required("placements", s.placements, "what axes may do to a tensor, by data path");
  }
};

template <>
struct Fields<LimitsAnswer> {
  static constexpr const char* kName = "Limits";

  static void visit(auto& v, auto& s) {
    v.required("message_bytes", s.message_bytes, "of one message, either way");
    v.required("depth", s.depth, "nesting of a message");
    v.required("batch_items", s.batch_items, "requests in one batch");
    v.required("sessions", s.sessions, "ranks attached to this daemon");
    v.required("buffers_per_session", s.buffers_per_session, "buffers of one rank");
    v.required("tensors", s.tensors, "tensors of one declaration");
    v.required("subscriptions", s.subscriptions, "of one connection");
    v.required("declare_s", s.declare_s, "until all ranks declared, where a call brings no timeout_ms; seconds");
    v.required("first_step_s", s.first_step_s, "until all ranks finished the first step of an epoch");
    v.required("step_s", s.step_s, "until all ranks finished a later step");
  }
};

template <>
struct Fields<InitializeResult> {
  static constexpr const char* kName = "InitializeResult";

  static void visit(auto& v, auto& s) {
    v.required("protocol", s.protocol, "1");
    v.required("server", s.server, "the daemon that answers");
    v.required("incarnation", s.incarnation, "16 hex digits, new at every start of the daemon");
    v.required("capabilities", s.capabilities, "what it can do");
    v.required("limits", s.limits, "what it refuses to exceed");
  }
};

template <>
struct Fields<plan::Axis> {
  static constexpr const char* kName = "Axis";

  static void visit(auto& v, auto& s) {
    v.required("name", s.name, "conventional: pp dp_replicate dp_shard cp tp ep; any is legal", kPlanNameLength);
    v.required("size", s.size, "ranks along the axis", kPositive);
  }
};

template <>
struct Fields<plan::Mesh> {
  static constexpr const char* kName = "Mesh";

  static void visit(auto& v, auto& s) {
    v.required("name", s.name, "unique in the job", kPlanNameLength);
    v.required("axes", s.axes, "row-major over ranks, last axis fastest");
    v.optional("sync_order", s.sync_order, "axis names, first stage first; empty: the conventional order");
  }
};

template <>
struct Fields<AttachParams> {
  static constexpr const char* kName = "AttachParams";

  static void visit(auto& v, auto& s) {
    v.required("job", s.job, "name of the training run; its key is (uid, job)", kNameLength);
    v.required("rank", s.rank, "this process in the job", kNatural);
    v.required("world_size", s.world_size, "ranks of the job", kPositive);
    v.required("meshes", s.meshes, "each covers all ranks", Bounds{1, 64});
    v.optional("restart_count", s.restart_count, "a higher one supersedes the live ranks", kNatural);
    v.optional("local_world_size", s.local_world_size, "ranks of the job on this node; 0: all of them", kNatural);
    v.optional("coordinator", s.coordinator, "HOST or HOST:PORT of rank 0's node, where it is another", Bounds{0, 256});
  }
};

template <>
struct Fields<AttachAnswer> {
  static constexpr const char* kName = "AttachResult";

  static void visit(auto& v, auto& s) {
    v.required("session", s.session, "this rank's number in the daemon");
    v.required("epoch", s.epoch, "membership of the job");
    v.required("attempt", s.attempt, "to use in the next step call");
    v.required("last_step", s.last_step, "label of the last committed step, or −1");
    v.required("resumed", s.resumed, "the same client was attached before: its buffers and plan are still there");
  }
};

template <>
struct Fields<PauseParams> {
  static constexpr const char* kName = "PauseParams";

  static void visit(auto& v, auto& s) { v.required("paused", s.paused, "true: no deadline waits for this rank"); }
};

template <>
struct Fields<AllocateParams> {
  static constexpr const char* kName = "AllocateParams";

  static void visit(auto& v, auto& s) {
    v.required("bytes", s.bytes, "size of the arena", kPositive);
    v.required("device", s.device, "cpu", kNameLength);
  }
};

template <>
struct Fields<AllocateAnswer> {
  static constexpr const char* kName = "AllocateResult";

  static void visit(auto& v, auto& s) {
    v.required("buffer", s.buffer, "id of the buffer");
    v.required("bytes", s.bytes, "its size");
    v.required("token", s.token, "32 hex digits: fetches or hands over the descriptor once, within 10 s");
  }
};

template <>
struct Fields<RegisterParams> {
  static constexpr const char* kName = "RegisterParams";

  static void visit(auto& v, auto& s) {
    v.required("transport", s.transport, "cuda_ipc", kNameLength);
    v.required("device", s.device, "UUID of the GPU: GPU- and 36 characters", kNameLength);
    v.required("handle", s.handle, "the 64 bytes of cuIpcGetMemHandle as 128 hex digits", Bounds{128, 128});
    v.required("base", s.base, "address of the allocation in this process, of cuMemGetAddressRange");
    v.required("allocation_bytes", s.allocation_bytes, "its size, of the same call", kPositive);
    v.required("offset", s.offset, "of the buffer in the allocation; a multiple of 16");
    v.required("bytes", s.bytes, "size of the buffer", kPositive);
    v.required("generation", s.generation, "higher whenever memory that was exported may have been freed");
  }
};

template <>
struct Fields<RegisterAnswer> {
  static constexpr const char* kName = "RegisterResult";

  static void visit(auto& v, auto& s) {
    v.required("buffer", s.buffer, "id of the buffer");
    v.required("bytes", s.bytes, "its size");
  }
};

template <>
struct Fields<ProbeParams> {
  static constexpr const char* kName = "ProbeParams";

  static void visit(auto& v, auto& s) {
    v.required("transport", s.transport, "cuda_ipc", kNameLength);
    v.required("device", s.device, "UUID of the GPU: GPU- and 36 characters", kNameLength);
    v.required("handle", s.handle, "the 64 bytes of cuIpcGetMemHandle as 128 hex digits", Bounds{128, 128});
    v.required("allocation_bytes", s.allocation_bytes, "its size, of cuMemGetAddressRange", kPositive);
    v.required("offset", s.offset, "where it is read and written; a multiple of 16");
    v.required("bytes", s.bytes, "how many bytes are read and written", Bounds{1, 256});
  }
};

template <>
struct Fields<ProbeAnswer> {
  static constexpr const char* kName = "ProbeResult";

  static void visit(auto& v, auto& s) {
    v.required("mapped_bytes", s.mapped_bytes, "size of the mapping: the allocation's, or more");
    v.required("read", s.read, "the bytes that were there, in hex; now their complements are there");
    v.required("open_s", s.open_s, "seconds to open the handle, and the GPU where nothing used it before");
    v.required("copy_s", s.copy_s, "seconds to read and write");
    v.required("close_s", s.close_s, "seconds to close the mapping");
  }
};

template <>
struct Fields<ReleaseParams> {
  static constexpr const char* kName = "ReleaseParams";

  static void visit(auto& v, auto& s) { v.required("buffer", s.buffer, "id of the buffer"); }
};

}  // namespace gradsync::rpc
