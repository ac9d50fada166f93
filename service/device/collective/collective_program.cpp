#include "device/collective/collective_program.hpp"

#include "device/device_error.hpp"
#include "plan/transfer/communicator_name.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace gradsync::device {

namespace {

using Kind = plan::TransferCollective::Kind;

void check_communicator(const LaneNodes& nodes, const LaneCommunicator& one, std::size_t number) {
  const CommunicatorSpec& spec = one.spec;
  bool good = spec.ranks.size() == one.nodes.size() && spec.own < one.nodes.size() &&
              one.nodes[spec.own] == nodes.node &&
              std::ranges::adjacent_find(one.nodes, std::greater_equal<>()) == one.nodes.end();
  for (std::size_t at = 0; good && at < one.nodes.size(); ++at) {
    good = spec.ranks[at] >= 0 && static_cast<std::size_t>(spec.ranks[at]) < nodes.node_of_rank.size() &&
           nodes.node_of_rank[static_cast<std::size_t>(spec.ranks[at])] == one.nodes[at];
  }
  check_fit(good, [&] {
    return fmt::format(
        "nodes.communicators.needed[{}] has ranks [{}], of which {} stands for this node, for nodes [{}]: node {} is "
        "not there, or ranks are not on these nodes",
        number,
        fmt::join(spec.ranks, ", "),
        spec.own,
        fmt::join(one.nodes, ", "),
        nodes.node
    );
  });
}

const LaneCommunicator& communicator_of(const LaneNodes& nodes, const std::vector<plan::TransferNode>& members) {
  const auto found = std::ranges::find(nodes.communicators->needed, members, &LaneCommunicator::nodes);
  check_fit(found != nodes.communicators->needed.end(), [&] {
    return fmt::format("nodes [{}] sum something, and have no communicator", fmt::join(members, ", "));
  });
  return *found;
}

class BucketProgram {
 public:
  BucketProgram(const LanePlan& layout, const NodeBucket& bucket, std::uint32_t number)
      : nodes_(layout.nodes), bucket_(bucket), transfer_(layout.nodes.transfers[number]), number_(number) {
    check_fit(transfer_.partial == transfer_.sum || transfer_.blocks.empty(), [&] {
      return fmt::format(
          "nodes.transfers[{}] rounds partial sums to {}, and collectives add them up in {}",
          number_,
          plan::name_of(transfer_.partial),
          plan::name_of(transfer_.sum)
      );
    });
  }

  [[nodiscard]] std::vector<NodeCollective> make() const {
    std::vector<NodeCollective> made;
    for (const plan::TransferCollective& one : plan::collectives_of(transfer_)) {
      if (std::ranges::binary_search(one.members, nodes_.node)) {
        made.push_back(make(one));
      }
    }
    return made;
  }

 private:
  [[nodiscard]] NodeCollective make(const plan::TransferCollective& one) const {
    const LaneCommunicator& communicator = communicator_of(nodes_, one.members);
    const bool scatters = one.kind == Kind::ReduceScatter;
    NodeCollective made;
    made.planned = {
        plan::communicator_name(communicator.spec.axes, communicator.spec.ranks),
        scatters ? CollectiveKind::ReduceScatter : CollectiveKind::AllReduce,
        transfer_.sum == plan::DType::Float64 ? NcclType::Float64 : NcclType::Float32,
        one.elements,
        number_,
        0};
    made.own = scatters ? communicator.spec.own : 0;
    for (const std::uint32_t block : one.blocks) {
      made.blocks.push_back(block == plan::kNoBlock ? block : here(block));
    }
    made.begins = one.begins;
    made.begins.push_back(one.staged());
    const std::uint64_t width = plan::size_of(transfer_.sum);
    made.staging_bytes = plan::align_up(one.staged() * width) + (scatters ? plan::align_up(one.elements * width) : 0);
    return made;
  }

  /// A source has a part in each of its blocks.
  [[nodiscard]] std::uint32_t here(std::uint32_t block) const {
    const auto found = std::ranges::lower_bound(bucket_.blocks, block, {}, &NodeBlock::block);
    return static_cast<std::uint32_t>(found - bucket_.blocks.begin());
  }

  const LaneNodes& nodes_;
  const NodeBucket& bucket_;
  const plan::BucketTransfer& transfer_;
  std::uint32_t number_;
};

}  // namespace

std::vector<PlannedCollective> CollectiveProgram::step() const {
  std::vector<PlannedCollective> all;
  for (const std::vector<NodeCollective>& bucket : buckets) {
    for (const NodeCollective& one : bucket) {
      all.push_back(one.planned);
    }
  }
  return all;
}

CollectiveProgram make_collective_program(const LanePlan& layout, const NodePlan& nodes) {
  const LaneNodes& of = layout.nodes;
  for (std::size_t number = 0; number < of.communicators->needed.size(); ++number) {
    check_communicator(of, of.communicators->needed[number], number);
  }
  CollectiveProgram made;
  std::uint64_t needed = 0;
  std::uint64_t largest = 0;
  for (std::uint32_t number = 0; number < layout.buckets.size(); ++number) {
    made.buckets.push_back(BucketProgram(layout, nodes.buckets[number], number).make());
    for (const NodeCollective& one : made.buckets.back()) {
      needed += one.staging_bytes;
      largest = std::max(largest, one.staging_bytes);
    }
  }
  check_fit(largest <= of.staging_bytes, [&] {
    return fmt::format(
        "a collective takes {} bytes of staging memory, and nodes.staging_bytes is {}", largest, of.staging_bytes
    );
  });
  made.staging_bytes = std::min(of.staging_bytes, needed);
  return made;
}

}  // namespace gradsync::device
