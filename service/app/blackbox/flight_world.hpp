#pragma once
// The dumps of one job side by side: one of each node, with their attempts and buckets by number. Pure.

#include "base/error.hpp"
#include "rpc/wire/dump_file.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::app {

/// A dump, and the name of the file that it is from.
struct NamedDump {
  std::string file;
  rpc::DumpFile dump;
};

using AttemptKey = std::pair<std::uint64_t, std::uint64_t>;  ///< epoch and attempt

/// What one node has recorded. It points into its dump.
struct FlightView {
  explicit FlightView(const rpc::DumpFile& dump);

  [[nodiscard]] const std::string& name() const { return head->node; }

  [[nodiscard]] std::int64_t number() const { return head->node_number; }

  /// Null where there is none.
  [[nodiscard]] const rpc::DumpAttempt* attempt(AttemptKey key) const;
  [[nodiscard]] const rpc::DumpBucket* bucket(AttemptKey key, std::uint32_t bucket) const;

  const rpc::DumpHead* head;
  std::map<AttemptKey, const rpc::DumpAttempt*> attempts;
  std::map<AttemptKey, std::map<std::uint32_t, const rpc::DumpBucket*>> buckets;
  std::vector<const rpc::DumpLink*> links;
};

/// One view of each node, by number.
struct FlightWorld {
  std::string job;
  std::vector<FlightView> views;
  std::vector<std::string> left_out;  ///< files of nodes that another one has newer words of, or of earlier restarts

  /// Every attempt that some node knows, ascending.
  [[nodiscard]] std::vector<AttemptKey> attempts() const;

  /// The name of a node, or its number and ranks where it has left no dump.
  [[nodiscard]] std::string node_name(std::int64_t number) const;

  /// The view that has the rank; null where its node has left no dump.
  [[nodiscard]] const FlightView* view_of(std::int64_t rank) const;

  /// The node of the rank, also where it has left no dump.
  [[nodiscard]] std::optional<std::int64_t> node_of(std::int64_t rank) const;

  /// Nodes of the job that have left no dump, ascending.
  [[nodiscard]] std::vector<std::int64_t> absent() const;

  /// The newest dump, whose word counts where others say another.
  [[nodiscard]] const rpc::DumpHead& newest() const;
};

/// Drops what is older than the last `count` steps. An attempt without a step belongs to the one behind it.
void keep_last_steps(rpc::DumpFile& dump, std::size_t count);

/// `job` may be empty where all dumps are of one job. The dumps outlive the world. Errors: InvalidParams, with the file
/// or `job`.
[[nodiscard]] Result<FlightWorld> make_world(const std::vector<NamedDump>& dumps, const std::string& job);

}  // namespace gradsync::app
