#pragma once
// The lanes of all nodes of a ShardedJob in one process, connected to each other, and steps of them: reductions, raw
// finishes whose cells are added, and the multiplication.

#include "device/host/host_lane.hpp"
#include "device/math/norm_sum.hpp"
#include "fakes/wire_network.hpp"
#include "plan/transfer/node_transfer.hpp"
#include "unit/device/host/sharded_oracle.hpp"
#include "unit/device/lane_fixture.hpp"
#include "unit/device/sharded_job.hpp"
#include "unit/device/transfer/node_communicators.hpp"
#include "unit/device/transfer/node_comparison.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::device {

using NodeOfRank = std::vector<plan::TransferNode>;

/// As much of a plan as a transfer program follows from.
inline plan::Plan plan_of(const LanePlan& layout) {
  const auto members = [](const std::vector<LaneMember>& from) {
    std::vector<plan::SumMember> made;
    for (const LaneMember& member : from) {
      made.push_back({member.rank, member.copy});
    }
    return made;
  };
  plan::Plan made;
  made.world_size = layout.world_size;
  for (const LaneBucket& bucket : layout.buckets) {
    plan::Bucket& each = made.buckets.emplace_back();
    each.dtype = bucket.dtype;
    each.tensors = bucket.tensors;
  }
  for (const LaneTensor& tensor : layout.tensors) {
    plan::PlannedTensor& each = made.tensors.emplace_back();
    each.bucket = tensor.bucket;
    each.copies = tensor.copies;
    for (std::uint32_t part = 0; part < tensor.parts; ++part) {
      const LanePart& held = layout.parts[tensor.first_part + part];
      each.parts.push_back({part, held.sums, held.elements, held.first, held.run, {}});
    }
  }
  for (const std::vector<LaneSum>& sums : layout.sums) {
    std::vector<plan::RankSum>& each = made.sums.emplace_back();
    for (const LaneSum& sum : sums) {
      each.push_back({members(sum.sources), members(sum.destinations)});
    }
  }
  return made;
}

inline std::vector<plan::BucketTransfer> transfers_of(
    const LanePlan& layout, const NodeOfRank& node_of_rank, const plan::TransferOptions& options
) {
  std::vector<plan::BucketTransfer> transfers;
  const plan::Plan plan = plan_of(layout);
  for (std::uint32_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    transfers.push_back(plan::make_bucket_transfer(plan, bucket, node_of_rank, options));
  }
  return transfers;
}

/// What the lane of one node loads. Buffers are numbered by rank from `first_buffer` on.
inline LanePlan layout_of_node(
    const LanePlan& layout,
    const NodeOfRank& node_of_rank,
    plan::TransferNode node,
    const plan::TransferOptions& options = {},
    BufferId first_buffer = 1
) {
  LanePlan made = layout;
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    made.rank_buffers[rank] = node_of_rank[rank] == node ? first_buffer + rank : 0;
  }
  made.nodes = {node, node_of_rank, transfers_of(layout, node_of_rank, options), options.staging_bytes, {}};
  for (const NodeClass& one : classes_of(layout, node_of_rank)) {
    if (one.nodes.contains(node)) {
      made.nodes.classes.push_back(one.boxes);
    }
  }
  return made;
}

using MakeNodeLane = std::function<std::unique_ptr<Lane>(plan::TransferNode node, LaneSink sink)>;

struct NodeWorldOptions {
  plan::TransferOptions transfer = {};
  bool sockets = false;  ///< else the wires of `network`
  int threads = 2;
  MakeNodeLane make_lane = {};  ///< none: lanes of this process
  std::string axis = {};        ///< of communicators, by which sums travel then; empty: over connections
  bool connects = true;
};

/// What all nodes said of a step together.
struct NodesSaid {
  NodeCells cells;
  double norm = 0;
  std::vector<std::uint32_t> absent;
  std::map<std::uint32_t, std::set<std::int64_t>> missing;
  std::map<std::uint32_t, std::set<std::int64_t>> divergence;
  std::map<std::uint32_t, std::uint64_t> nonfinite;                                    ///< by tensor
  std::map<std::pair<std::uint32_t, std::int64_t>, std::uint64_t> nonfinite_of_ranks;  ///< by tensor and rank
  std::vector<plan::ClipOutcome> outcomes;
  std::vector<Failed> failed;
  int boxes_read = 0;  ///< whose rows were asked for, because nodes differ or have not counted them
  int uncounted = 0;
};

class NodeWorld {
 public:
  static constexpr PlanId kPlan = 7;

  /// A node of it.
  struct Node {
    ReportBox box;
    std::unique_ptr<Lane> lane;
    std::optional<LoadedCommunicators> loaded = {};
  };

  NodeWorld(ShardedJob& of_job, NodeOfRank placed, NodeWorldOptions options = {})
      : job(of_job), node_of_rank(std::move(placed)), options_(options) {
    const std::size_t count = 1 + *std::ranges::max_element(node_of_rank);
    for (const std::vector<std::byte>& bytes : job.arenas) {
      arenas.emplace_back(bytes.size());
    }
    for (std::size_t node = 0; node < count; ++node) {
      Node& made = *nodes.emplace_back(std::make_unique<Node>());
      made.lane = make_lane(static_cast<plan::TransferNode>(node), [&made](LaneReport report) {
        made.box.put(std::move(report));
      });
    }
    load();
    if (options_.connects) {
      connect(kPlan);
    }
  }

  ~NodeWorld() {
    for (const auto& node : nodes) {
      node->lane.reset();  // before others are gone, whose wires its own speaks to
    }
  }

  NodeWorld(const NodeWorld&) = delete;
  NodeWorld& operator=(const NodeWorld&) = delete;

  void load() {
    for (plan::TransferNode node = 0; node < nodes.size(); ++node) {
      for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
        if (node_of_rank[rank] == node) {
          submit(node, MapBuffer{rank + 1, arenas[rank].descriptor(), arenas[rank].size_bytes()});
          expect<Mapped>(node);
        }
      }
    }
    load_plan(options_.axis);
  }

  /// Again, with communicators of that axis.
  void load_plan(const std::string& axis, bool fresh = false) {
    options_.axis = axis;
    for (plan::TransferNode node = 0; node < nodes.size(); ++node) {
      LanePlan layout = layout_of_node(job.layout, node_of_rank, node, options_.transfer);
      if (!axis.empty()) {
        layout.nodes.communicators = communicators_of(layout.nodes, axis);
        layout.nodes.communicators->fresh = fresh;
      }
      submit(node, LoadPlan{kPlan, std::move(layout)});
      nodes[node]->loaded = expect<Loaded>(node).communicators;
    }
  }

  /// What all nodes offer, brought together.
  [[nodiscard]] Result<std::vector<CommunicatorId>> agreed() const {
    std::vector<NodeOffers> all;
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      all.push_back(offers_of("node " + std::to_string(node), nodes[node]->loaded.value()));
    }
    return agree_on_communicators(all);
  }

  /// Tells the nodes to connect by communicators, and waits for none.
  void submit_connect(const std::vector<CommunicatorId>& ids) {
    for (plan::TransferNode node = 0; node < nodes.size(); ++node) {
      submit(node, ConnectNodes{kPlan, {}, ids_for(nodes[node]->loaded.value(), ids)});
    }
  }

  /// Gives the nodes the connections that their transfers need.
  void connect(PlanId plan) {
    if (!options_.axis.empty()) {
      const Result<std::vector<CommunicatorId>> ids = agreed();
      if (!ids) {
        throw std::runtime_error(ids.error().message);
      }
      submit_connect(*ids);
      for (plan::TransferNode node = 0; node < nodes.size(); ++node) {
        expect<Connected>(node);
      }
      return;
    }
    std::map<plan::TransferNode, std::vector<NodeConnection>> connections;
    for (const auto& [a, b] : links()) {
      auto [of_a, of_b] = network.connect(a, b);
      connections[a].push_back(std::move(of_a));
      connections[b].push_back(std::move(of_b));
    }
    for (plan::TransferNode node = 0; node < nodes.size(); ++node) {
      submit(node, ConnectNodes{plan, std::move(connections[node])});
      expect<Connected>(node);
    }
  }

  /// Pairs of nodes that exchange messages, the lower one first.
  [[nodiscard]] std::set<std::pair<plan::TransferNode, plan::TransferNode>> links() const {
    std::set<std::pair<plan::TransferNode, plan::TransferNode>> links;
    for (const plan::BucketTransfer& transfer : transfers_of(job.layout, node_of_rank, options_.transfer)) {
      for (plan::TransferNode node = 0; node < nodes.size(); ++node) {
        for (const plan::TransferMessage& message : plan::transfer_of_node(transfer, node).sends) {
          links.insert(std::minmax(node, message.peer));
        }
      }
    }
    return links;
  }

  void submit(plan::TransferNode node, LaneCommand command) { nodes[node]->lane->submit(std::move(command)); }

  template <typename Report>
  Report expect(plan::TransferNode node) {
    LaneReport report = nodes[node]->box.take();
    if (auto* wanted = std::get_if<Report>(&report)) {
      return std::move(*wanted);
    }
    const auto* failed = std::get_if<Failed>(&report);
    ADD_FAILURE() << "node " << node << ": report " << report.index() << ": " << (failed ? failed->message : "");
    return {};
  }

  /// For an attempt behind all that were numbered so.
  [[nodiscard]] Tag next_tag() { return ++last_tag_; }

  /// The job's bytes into the memory of its trainers.
  void write() {
    for (std::size_t rank = 0; rank < arenas.size(); ++rank) {
      std::memcpy(arenas[rank].data(), job.arenas[rank].data(), arenas[rank].size_bytes());
    }
  }

  [[nodiscard]] std::vector<std::vector<std::byte>> memory() const {
    std::vector<std::vector<std::byte>> bytes;
    for (const ClientArena& arena : arenas) {
      bytes.emplace_back(arena.data(), arena.data() + arena.size_bytes());
    }
    return bytes;
  }

  [[nodiscard]] ReduceBucket reduction(
      plan::TransferNode node, Tag tag, std::uint32_t bucket, const UnusedSet& unused = {}, bool compare = true
  ) const {
    ReduceBucket command{kPlan, tag, bucket, {}, compare, false};
    for (const auto& [tensor, rank] : unused) {
      if (node_of_rank[rank] == node && job.layout.tensors[tensor].bucket == bucket) {
        command.unused.push_back({tensor, rank});
      }
    }
    return command;
  }

  [[nodiscard]] static FinishStep raw_finish(Tag tag) {
    FinishStep finish;
    finish.plan = kPlan;
    finish.tag = tag;
    finish.apply = false;
    finish.raw = true;
    return finish;
  }

  void reduce_all(Tag tag, const UnusedSet& unused = {}) {
    for (std::uint32_t bucket = 0; bucket < job.layout.buckets.size(); ++bucket) {
      for (plan::TransferNode node = 0; node < nodes.size(); ++node) {
        submit(node, reduction(node, tag, bucket, unused, compares));
      }
    }
  }

  /// Reductions and raw finishes, the finish behind the last reduction without a pause.
  NodesSaid measure(Tag tag, const UnusedSet& unused = {}) {
    write();
    reduce_all(tag, unused);
    for (plan::TransferNode node = 0; node < nodes.size(); ++node) {
      submit(node, raw_finish(tag));
    }
    NodesSaid said;
    NormSum whole(job.layout.norm_type);
    std::vector<NormSum> groups(job.layout.clip_groups, whole);
    std::map<std::uint32_t, std::set<plan::TransferNode>> absent_on;
    std::vector<std::vector<std::uint64_t>> hashes(nodes.size());
    for (plan::TransferNode node = 0; node < nodes.size(); ++node) {
      for (std::uint32_t bucket = 0; bucket < job.layout.buckets.size(); ++bucket) {
        EXPECT_EQ(expect<Reduced>(node).bucket, bucket);
      }
      const LaneReport report = nodes[node]->box.take();
      const auto* finished = std::get_if<Finished>(&report);
      if (finished == nullptr || finished->raw == nullptr) {
        const auto* failed = std::get_if<Failed>(&report);
        said.failed.push_back(failed != nullptr ? *failed : Failed{});
        continue;
      }
      const NodeCells& cells = finished->raw->cells;
      whole.add(cells.whole);
      for (std::size_t group = 0; group < groups.size(); ++group) {
        groups[group].add(cells.groups.empty() ? cells.whole : cells.groups.at(group));
      }
      said.cells.counted_elements += cells.counted_elements;
      hashes[node] = finished->raw->class_hashes;
      for (const std::uint32_t tensor : finished->math.absent) {
        absent_on[tensor].insert(node);
      }
      join(finished->math, said);
    }
    if (said.failed.empty()) {
      compare_copies(tag, hashes, whole, groups, said);
    }
    said.cells.whole = whole.sum();
    said.norm = whole.norm();
    plan::ClipRule rule;
    rule.norm_dtype = plan::DType::Float64;
    rule.max_norm = max_norm;
    for (const NormSum& group : groups) {
      said.outcomes.push_back(plan::apply_clip_rule(rule, group.norm(), 1));
    }
    said.absent = absent_everywhere(absent_on);
    std::erase_if(said.missing, [&](const auto& each) { return std::ranges::binary_search(said.absent, each.first); });
    return said;
  }

  /// Then the multiplication.
  NodesSaid step(Tag tag, const UnusedSet& unused = {}) {
    NodesSaid said = measure(tag, unused);
    const bool measured = said.failed.empty();
    for (plan::TransferNode node = 0; node < nodes.size() && measured; ++node) {
      submit(node, ScaleGradients{kPlan, tag, said.outcomes, {}, said.absent});
    }
    for (plan::TransferNode node = 0; node < nodes.size() && measured; ++node) {
      const LaneReport report = nodes[node]->box.take();
      if (const auto* failed = std::get_if<Failed>(&report)) {
        said.failed.push_back(*failed);
      }
    }
    return said;
  }

  ShardedJob& job;
  NodeOfRank node_of_rank;
  std::optional<double> max_norm;
  bool compares = true;  ///< the bits of results
  fakes::WireNetwork network;
  std::vector<ClientArena> arenas;  ///< by rank
  std::vector<std::unique_ptr<Node>> nodes;

 private:
  [[nodiscard]] std::unique_ptr<Lane> make_lane(plan::TransferNode node, LaneSink sink) {
    if (options_.make_lane) {
      return options_.make_lane(node, std::move(sink));
    }
    HostLaneOptions lane{options_.threads, options_.sockets ? MakeWire(make_socket_wire) : network.maker()};
    return std::make_unique<HostLane>(std::move(lane), std::move(sink));
  }

  void compare_copies(
      Tag tag,
      const std::vector<std::vector<std::uint64_t>>& hashes,
      NormSum& whole,
      std::vector<NormSum>& groups,
      NodesSaid& said
  ) {
    NodesCompared<NodeWorld> compared(*this, tag);
    compared.compare(hashes);
    for (const HeldRow& row : compared.uncounted) {
      const LaneTensor& tensor = job.layout.tensors[row.tensor];
      whole.add(sum_of(row.row));
      groups[tensor.clip_group].add(sum_of(row.row));
      said.cells.counted_elements += job.layout.parts[tensor.first_part + row.box].elements;
    }
    for (const auto& [tensor, rank] : compared.judged) {
      said.divergence[tensor].erase(rank);  // a node compares with its own results alone
    }
    for (const auto& [tensor, ranks] : compared.divergence) {
      said.divergence[tensor].insert(ranks.begin(), ranks.end());
    }
    for (const auto& [tensor, ranks] : compared.missing) {
      said.missing[tensor].insert(ranks.begin(), ranks.end());
    }
    std::erase_if(said.divergence, [](const auto& each) { return each.second.empty(); });
    said.boxes_read = compared.boxes_read;
    said.uncounted = static_cast<int>(compared.uncounted.size());
  }

  static void join(const StepMath& math, NodesSaid& said) {
    EXPECT_TRUE(math.groups.empty() && math.layer_norms.empty());
    for (const MissingFinding& missing : math.missing) {
      said.missing[missing.tensor].insert(missing.ranks.begin(), missing.ranks.end());
    }
    for (const DivergenceFinding& divergence : math.divergence) {
      said.divergence[divergence.tensor].insert(divergence.ranks.begin(), divergence.ranks.end());
    }
    for (const NonfiniteFinding& nonfinite : math.nonfinite) {
      said.nonfinite[nonfinite.tensor] += nonfinite.count;
      for (const auto& [rank, count] : nonfinite.inputs) {
        said.nonfinite_of_ranks[{nonfinite.tensor, rank}] += count;
      }
    }
  }

  /// A tensor is with its copies: where each node that brings any of them says so.
  [[nodiscard]] std::vector<std::uint32_t> absent_everywhere(
      const std::map<std::uint32_t, std::set<plan::TransferNode>>& absent_on
  ) const {
    std::map<std::uint32_t, bool> absent;  // by counted tensor
    for (const LanePart& part : job.layout.parts) {
      absent.try_emplace(part.tensor, true);
      for (const LaneSum& sum : job.layout.sums[part.sums]) {
        for (const LaneMember& source : sum.sources) {
          const auto found = absent_on.find(part.tensor + source.copy);
          const bool said = found != absent_on.end() && found->second.contains(node_of_rank[source.rank]);
          absent[part.tensor] = absent[part.tensor] && said;
        }
      }
    }
    std::vector<std::uint32_t> tensors;
    for (const auto& [tensor, is_absent] : absent) {
      for (std::uint32_t copy = 0; is_absent && copy <= job.specs[tensor].copies; ++copy) {
        tensors.push_back(tensor + copy);
      }
    }
    return tensors;
  }

  NodeWorldOptions options_;
  Tag last_tag_ = 0;
};

}  // namespace gradsync::device
