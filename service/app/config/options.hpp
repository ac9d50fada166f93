#pragma once
// Every setting of the daemon: one struct of structs, a default and a unit each. Sections and fields are named as in
// the configuration file, the environment (GRADSYNC_SECTION_KEY) and the flags (--section-key).

#include <cstdint>
#include <string>
#include <vector>

namespace gradsync::app {

/// Printed and written in octal.
struct FileMode {
  std::uint32_t value = 0660;
  friend bool operator==(FileMode, FileMode) = default;
};

struct ServerSection {
  std::string socket;  ///< filled in from `socket_places`
  FileMode socket_mode;
  std::vector<std::int64_t> allowed_uids;  ///< empty: every uid that the mode admits
  std::string health = "127.0.0.1:9477";   ///< empty: none
  std::string tcp;                         ///< empty: none
  std::string tcp_token_file;              ///< empty: nobody may change anything over TCP
  std::string tcp_read_token_file;         ///< empty: nobody may only read
};

struct LimitsSection {
  std::int64_t sessions = 1024;
  std::int64_t buffers_per_session = 64;
  std::int64_t arena_bytes = 0;  ///< 0: what the machine has
  std::int64_t tensors = 200'000;
  std::int64_t message_bytes = 1 << 20;
  std::int64_t connections = 2048;
};

struct DeadlinesSection {
  std::int64_t declare_ms = 300'000;
  std::int64_t first_step_ms = 1'800'000;
  std::int64_t step_ms = 600'000;
  std::int64_t reconnect_ms = 2'000;
  std::int64_t initialize_ms = 30'000;
  std::int64_t drain_ms = 30'000;
  std::int64_t io_turn_ms = 0;  ///< 0: none
};

struct EngineSection {
  std::int64_t first_bucket_bytes = 1 << 20;
  std::int64_t bucket_bytes = 25 << 20;
  std::int64_t threads = 0;  ///< 0: what affinity and cgroup allow
  std::int64_t check_every = 100;
  std::int64_t history = 1000;
  std::string policy_directory;  ///< empty: beside the socket; "off": none
  std::int64_t job_gauges = 0;   ///< 0: none
};

struct GpuSection {
  std::string kernels;             ///< empty: beside this program; "off": no GPU is used
  std::string devices;             ///< UUIDs, with commas between; empty: those that the driver lists
  std::string peer_access = "on";  ///< whether GPUs reach each other's memory; "off": NCCL adds up what is on several
  std::int64_t map_ms = 20'000;
  std::int64_t plan_ms = 120'000;
  std::int64_t abort_ms = 30'000;
};

/// NCCL between nodes (docs/adr/0037).
struct NcclSection {
  std::string cpu_gradients = "sockets";  ///< what those in memory of CPUs travel by: "sockets" or "nccl"
  std::string library;                    ///< empty: libnccl.so.2 as the loader finds it; "off": none
  std::string interface;                  ///< of the network; empty: as NCCL chooses
  std::int64_t max_ctas = 8;
  std::int64_t cga_cluster = 0;
  std::int64_t traffic_class = -1;  ///< −1: as NCCL chooses
  std::int64_t init_ms = 120'000;
  std::int64_t abort_ms = 10'000;
};

struct PeerSection {
  std::string listen;  ///< empty: none
  std::string token_file;
  std::string node;  ///< empty: the host name
};

struct BlackboxSection {
  std::string folder;  ///< empty: beside the socket; "off": none
  std::int64_t kept_files = 32;
};

struct LogSection {
  std::string level = "info";
  std::string format = "auto";
};

struct Options {
  ServerSection server;
  LimitsSection limits;
  DeadlinesSection deadlines;
  EngineSection engine;
  GpuSection gpu;
  NcclSection nccl;
  PeerSection peer;
  BlackboxSection blackbox;
  LogSection log;
};

}  // namespace gradsync::app
