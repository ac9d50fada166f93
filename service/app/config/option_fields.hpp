#pragma once
// The one list of settings: file, environment, flags, help and the printed configuration are all made from it.

#include "app/config/options.hpp"

#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace gradsync::app {

struct FieldRule {
  std::string_view doc;
  std::int64_t least = 0;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  std::vector<std::string_view> choices = {};  ///< the texts that are allowed; empty: any
  std::string_view value = "TEXT";             ///< what help calls a text: FILE, SOCKET
};

/// Calls `visit(section, key, field, rule)` for every setting, in the order of the file.
template <typename AnyOptions, typename Visit>
void for_each_field(AnyOptions& options, Visit&& visit) {
  constexpr std::int64_t kDay = 86'400'000;
  constexpr std::int64_t kMebi = 1 << 20;
  auto& server = options.server;
  visit(
      "server",
      "socket",
      server.socket,
      FieldRule{
          .doc =
              "Unix socket of the daemon; must end in .sock. The socket for descriptors lies beside it as ….fd.sock.",
          .value = "SOCKET"}
  );
  visit("server", "socket_mode", server.socket_mode, FieldRule{"Mode of both sockets."});
  visit(
      "server",
      "allowed_uids",
      server.allowed_uids,
      FieldRule{
          "Uids that may connect, besides root and the daemon's own. Empty: every uid that the mode admits.",
          0,
          4'294'967'294}
  );
  visit(
      "server",
      "health",
      server.health,
      FieldRule{
          .doc = "Address of health, metrics and status pages over HTTP; \"off\" for none, port 0 for any free one.",
          .value = "HOST:PORT"}
  );
  visit(
      "server",
      "tcp",
      server.tcp,
      FieldRule{
          .doc = "Address of RPC without a session over TCP; \"off\" for none. Needs tcp_token_file or "
                 "tcp_read_token_file.",
          .value = "HOST:PORT"}
  );
  visit(
      "server",
      "tcp_token_file",
      server.tcp_token_file,
      FieldRule{
          .doc = "File with the bearer token (at least 16 bytes) that TCP clients send; the health port shows jobs "
                 "with it, too. Read again when it changes.",
          .value = "FILE"}
  );
  visit(
      "server",
      "tcp_read_token_file",
      server.tcp_read_token_file,
      FieldRule{.doc = "File with another token, for clients that may read and change nothing.", .value = "FILE"}
  );
  auto& limits = options.limits;
  visit("limits", "sessions", limits.sessions, FieldRule{"Ranks attached at once, all jobs.", 1, 1'000'000});
  visit(
      "limits", "buffers_per_session", limits.buffers_per_session, FieldRule{"Buffers one rank may hold.", 1, 1'000'000}
  );
  visit(
      "limits",
      "arena_bytes",
      limits.arena_bytes,
      FieldRule{"Bytes of gradient memory of all jobs; 0: what the machine and its cgroup have."}
  );
  visit("limits", "tensors", limits.tensors, FieldRule{"Tensors one job may declare.", 1, 10'000'000});
  visit("limits", "message_bytes", limits.message_bytes, FieldRule{"Bytes of one message.", 4096, 64 * kMebi});
  visit(
      "limits", "connections", limits.connections, FieldRule{"Open connections; probes get in above it.", 1, 1'000'000}
  );
  auto& deadlines = options.deadlines;
  visit(
      "deadlines",
      "declare_ms",
      deadlines.declare_ms,
      FieldRule{"Until all ranks of a job have declared, in milliseconds.", 1, kDay}
  );
  visit(
      "deadlines",
      "first_step_ms",
      deadlines.first_step_ms,
      FieldRule{"Until all ranks finish the first step, compilation included, in milliseconds.", 1, kDay}
  );
  visit(
      "deadlines",
      "step_ms",
      deadlines.step_ms,
      FieldRule{"Until all ranks finish a later step, in milliseconds.", 1, kDay}
  );
  visit(
      "deadlines",
      "reconnect_ms",
      deadlines.reconnect_ms,
      FieldRule{"For a live trainer to come back after its connection closed, in milliseconds.", 0, kDay}
  );
  visit(
      "deadlines",
      "initialize_ms",
      deadlines.initialize_ms,
      FieldRule{"For session.initialize on a new connection, in milliseconds; then it is closed.", 1, kDay}
  );
  visit(
      "deadlines",
      "drain_ms",
      deadlines.drain_ms,
      FieldRule{"For the step in flight when the daemon is told to stop, in milliseconds.", 0, kDay}
  );
  visit(
      "deadlines",
      "io_turn_ms",
      deadlines.io_turn_ms,
      FieldRule{
          "For tests: one handler that computes longer than this ends the daemon, in milliseconds; 0: never.", 0, kDay}
  );
  auto& engine = options.engine;
  visit(
      "engine",
      "first_bucket_bytes",
      engine.first_bucket_bytes,
      FieldRule{"Size of the first bucket, small so that reduction starts early, in bytes.", 1, 1024 * kMebi}
  );
  visit(
      "engine", "bucket_bytes", engine.bucket_bytes, FieldRule{"Size of the other buckets in bytes.", 1, 1024 * kMebi}
  );
  visit(
      "engine",
      "threads",
      engine.threads,
      FieldRule{"Threads of the host lane; 0: what CPU affinity and the cgroup allow.", 0, 4096}
  );
  visit(
      "engine",
      "check_every",
      engine.check_every,
      FieldRule{"Replicas are compared on the first three steps, then every so many; 1: always.", 1}
  );
  visit("engine", "history", engine.history, FieldRule{"Step reports kept per job.", 1, 1'000'000});
  visit(
      "engine",
      "policy_directory",
      engine.policy_directory,
      FieldRule{
          .doc = "Directory of what clipping policies remember; empty: beside the socket, as ….policies; \"off\" for "
                 "none.",
          .value = "DIRECTORY"}
  );
  visit(
      "engine",
      "job_gauges",
      engine.job_gauges,
      FieldRule{"Jobs whose last norm and threshold /metrics shows by name, at most; 0: none.", 0, 1000}
  );
  auto& gpu = options.gpu;
  visit(
      "gpu",
      "kernels",
      gpu.kernels,
      FieldRule{
          .doc = "libgradsync_kernels.so, which reduces gradients on GPUs; empty: the one that the package brings; "
                 "\"off\": no GPU is used.",
          .value = "FILE"}
  );
  visit(
      "gpu",
      "devices",
      gpu.devices,
      FieldRule{
          .doc = "UUIDs of the GPUs that may be used, with commas between; empty: those that the driver lists.",
          .value = "GPU-UUID,…"}
  );
  visit(
      "gpu",
      "peer_access",
      gpu.peer_access,
      FieldRule{
          .doc =
              "Whether the GPUs of this node reach each other's memory. Where they do not, NCCL adds up gradients of "
              "a job that lie on several of them, as between nodes.",
          .choices = {"on", "off"}}
  );
  visit(
      "gpu",
      "map_ms",
      gpu.map_ms,
      FieldRule{
          "A worker that takes longer to map memory of a trainer is killed, in milliseconds. Clients wait 30 s.",
          1,
          30'000}
  );
  visit(
      "gpu",
      "plan_ms",
      gpu.plan_ms,
      FieldRule{
          "A worker that takes longer to load or unload a plan, or to unmap memory, is killed, in milliseconds.",
          1,
          kDay}
  );
  visit(
      "gpu",
      "abort_ms",
      gpu.abort_ms,
      FieldRule{"A worker that takes longer to end a step that failed is killed, in milliseconds.", 1, kDay}
  );
  auto& nccl = options.nccl;
  visit(
      "nccl",
      "cpu_gradients",
      nccl.cpu_gradients,
      FieldRule{
          .doc =
              "By what gradients in memory of CPUs travel between nodes: sockets, or nccl, which takes a library with "
              "NCCL's interface that adds up such memory. NCCL itself does not. Equal on all nodes.",
          .choices = {"sockets", "nccl"}}
  );
  visit(
      "nccl",
      "library",
      nccl.library,
      FieldRule{
          .doc = "libnccl.so.2 of NCCL 2.28.9 or later, for GPUs of several nodes; empty: as the loader finds it; "
                 "\"off\": none.",
          .value = "FILE"}
  );
  visit(
      "nccl",
      "interface",
      nccl.interface,
      FieldRule{
          .doc = "Network interfaces that NCCL may use, as in NCCL_SOCKET_IFNAME; empty: as NCCL chooses.",
          .value = "NAME"}
  );
  visit(
      "nccl",
      "max_ctas",
      nccl.max_ctas,
      FieldRule{"Blocks of threads that one communicator may have on a GPU, beside the trainer's kernels.", 1, 32}
  );
  visit(
      "nccl", "cga_cluster", nccl.cga_cluster, FieldRule{"Blocks in a cluster, on GPUs that have them; 0: none.", 0, 8}
  );
  visit(
      "nccl",
      "traffic_class",
      nccl.traffic_class,
      FieldRule{"Traffic class of the network's packets; -1: as NCCL chooses.", -1, 255}
  );
  visit(
      "nccl",
      "init_ms",
      nccl.init_ms,
      FieldRule{"For all communicators of a job to be built and warmed up, in milliseconds.", 1, kDay}
  );
  visit(
      "nccl",
      "abort_ms",
      nccl.abort_ms,
      FieldRule{"A worker whose NCCL takes longer to abort is killed, in milliseconds.", 1, kDay}
  );
  auto& peer = options.peer;
  visit(
      "peer",
      "listen",
      peer.listen,
      FieldRule{
          .doc =
              "Address for the daemons of other nodes, for jobs over several nodes; \"off\" for none; without a port "
              "9478. Needs token_file.",
          .value = "HOST[:PORT]"}
  );
  visit(
      "peer",
      "token_file",
      peer.token_file,
      FieldRule{
          .doc = "File with the token (at least 16 bytes) that the daemons of all nodes have in common.",
          .value = "FILE"}
  );
  visit(
      "peer",
      "node",
      peer.node,
      FieldRule{.doc = "Name of this node in messages, at most 64 bytes; empty: the host name.", .value = "NAME"}
  );
  auto& blackbox = options.blackbox;
  visit(
      "blackbox",
      "folder",
      blackbox.folder,
      FieldRule{
          .doc = "Folder for dumps of the flight recorder; empty: beside the socket, as ….blackbox; \"off\" for none.",
          .value = "DIRECTORY"}
  );
  visit(
      "blackbox",
      "kept_files",
      blackbox.kept_files,
      FieldRule{"Dumps kept of the jobs of each user; older ones are removed.", 1, 10'000}
  );
  auto& log = options.log;
  visit(
      "log",
      "level",
      log.level,
      FieldRule{"trace, debug, info, warn or error.", 0, 0, {"trace", "debug", "info", "warn", "error"}}
  );
  visit(
      "log",
      "format",
      log.format,
      FieldRule{"text, json, or auto: text on a terminal and JSON elsewhere.", 0, 0, {"auto", "text", "json"}}
  );
}

}  // namespace gradsync::app
