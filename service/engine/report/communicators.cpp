#include "engine/report/communicators.hpp"

#include "plan/transfer/communicator_name.hpp"
#include "plan/transfer/node_transfer.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace gradsync::engine {

namespace {

constexpr std::size_t kMostListed = 16;

/// The ranks that bring something to each stream.
std::vector<std::vector<std::int64_t>> ranks_by_stream(const plan::Plan& plan, const plan::BucketTransfer& transfer) {
  std::vector<std::set<std::int64_t>> found(transfer.streams.size());
  for (const plan::TransferBlock& block : transfer.blocks) {
    for (const plan::TransferPiece& piece : transfer.pieces_of(block)) {
      const plan::PlannedPart& part = plan.tensors[piece.tensor].parts[piece.part];
      for (const plan::SumMember& source : plan.sums[part.sums][piece.sum].sources) {
        found[block.stream].insert(source.rank);
      }
    }
  }
  std::vector<std::vector<std::int64_t>> ranks;
  for (const std::set<std::int64_t>& each : found) {
    ranks.emplace_back(each.begin(), each.end());
  }
  return ranks;
}

}  // namespace

void Communicators::add(
    const plan::Plan& plan, const device::LaneNodes& nodes, const plan::CollectivesByBucket& collectives
) {
  nccl_ = nodes.communicators.has_value();
  const UsesByBucket& uses =
      by_lane_.emplace_back(nccl_ ? count_collectives(nodes, collectives) : count_messages(plan, nodes));
  std::map<std::size_t, std::uint64_t> per_step;
  for (const std::vector<Use>& of_bucket : uses) {
    for (const Use& use : of_bucket) {
      per_step[use.communicator] += use.operations;
    }
  }
  for (const auto& [number, operations] : per_step) {  // all lanes that are in one have the same
    all_[number].operations_per_step = operations;
    all_[number].counted_by = std::min(all_[number].counted_by, by_lane_.size() - 1);
  }
}

Communicators::UsesByBucket Communicators::count_messages(const plan::Plan& plan, const device::LaneNodes& nodes) {
  UsesByBucket by_bucket(nodes.transfers.size());
  for (std::size_t bucket = 0; bucket < nodes.transfers.size(); ++bucket) {
    const plan::BucketTransfer& transfer = nodes.transfers[bucket];
    const std::vector<std::size_t> of_stream = take_streams(plan, transfer, nodes.node);
    const plan::NodeTransfer here = plan::transfer_of_node(transfer, nodes.node);
    std::vector<Use>& uses = by_bucket[bucket];
    const auto use_of = [&](const plan::TransferMessage& message) -> Use& {
      const std::size_t number = of_stream[transfer.blocks[message.block].stream];
      const auto found = std::ranges::find(uses, number, &Use::communicator);
      return found != uses.end() ? *found : uses.emplace_back(Use{number, 0, 0, 1});
    };
    for (const plan::TransferMessage& message : here.sends) {
      use_of(message).sent_bytes += message.bytes;
    }
    for (const plan::TransferMessage& message : here.receives) {
      use_of(message).received_bytes += message.bytes;
    }
  }
  return by_bucket;
}

Communicators::UsesByBucket Communicators::count_collectives(
    const device::LaneNodes& nodes, const plan::CollectivesByBucket& collectives
) {
  const std::vector<device::LaneCommunicator>& needed = nodes.communicators->needed;
  std::vector<std::size_t> numbers;
  for (const device::LaneCommunicator& one : needed) {
    numbers.push_back(find_or_add(plan::communicator_name(one.spec.axes, one.spec.ranks), one.spec.ranks));
  }
  UsesByBucket by_bucket(collectives.size());
  for (std::size_t bucket = 0; bucket < collectives.size(); ++bucket) {
    const std::uint64_t width = plan::size_of(nodes.transfers[bucket].sum);
    for (const plan::TransferCollective& one : collectives[bucket]) {
      const auto found = std::ranges::find(needed, one.members, &device::LaneCommunicator::nodes);
      if (found != needed.end()) {
        const std::size_t number = numbers[static_cast<std::size_t>(found - needed.begin())];
        by_bucket[bucket].push_back({number, one.staged() * width, one.elements * width, 1});
      }
    }
  }
  return by_bucket;
}

/// By stream the number of its communicator; that of a stream without this node is not used.
std::vector<std::size_t> Communicators::take_streams(
    const plan::Plan& plan, const plan::BucketTransfer& transfer, plan::TransferNode node
) {
  std::vector<std::vector<std::int64_t>> ranks = ranks_by_stream(plan, transfer);
  std::vector<std::size_t> numbers(ranks.size(), all_.size());
  for (std::size_t stream = 0; stream < ranks.size(); ++stream) {
    if (std::ranges::binary_search(transfer.streams[stream].sources, node)) {
      std::string name = plan::communicator_name(plan.buckets[transfer.bucket].axes, ranks[stream]);
      numbers[stream] = find_or_add(std::move(name), std::move(ranks[stream]));
    }
  }
  return numbers;
}

std::size_t Communicators::find_or_add(std::string name, std::vector<std::int64_t> ranks) {
  const auto found = std::ranges::find(all_, name, &Communicator::name);
  const auto number = static_cast<std::size_t>(found - all_.begin());
  if (found == all_.end()) {
    all_.push_back({std::move(name), std::move(ranks)});
  }
  return number;
}

const std::vector<Communicators::Use>& Communicators::uses_of(std::size_t lane, std::uint32_t bucket) const {
  static const std::vector<Use> kNone;
  return lane < by_lane_.size() && bucket < by_lane_[lane].size() ? by_lane_[lane][bucket] : kNone;
}

void Communicators::on_reduced(std::size_t lane, std::uint32_t bucket, TimePoint now) {
  for (const Use& use : uses_of(lane, bucket)) {
    Communicator& used = all_[use.communicator];
    used.sent_bytes += use.sent_bytes;
    used.received_bytes += use.received_bytes;
    used.operations += used.counted_by == lane ? use.operations : 0;
    used.used = now;
  }
}

std::uint64_t Communicators::bytes_of(std::size_t lane, std::uint32_t bucket) const {
  std::uint64_t bytes = 0;
  for (const Use& use : uses_of(lane, bucket)) {
    bytes += use.sent_bytes + use.received_bytes;
  }
  return bytes;
}

std::uint64_t Communicators::collectives_of(std::size_t lane, std::uint32_t bucket) const {
  const auto counts = [&](const Use& use) { return all_[use.communicator].counted_by == lane; };
  return nccl_ ? static_cast<std::uint64_t>(std::ranges::count_if(uses_of(lane, bucket), counts)) : 0;
}

std::vector<CommunicatorStatus> Communicators::status(std::uint64_t epoch, const char* state, TimePoint now) const {
  std::vector<CommunicatorStatus> listed;
  for (std::size_t i = 0; i < std::min(all_.size(), kMostListed); ++i) {
    const Communicator& one = all_[i];
    listed.push_back(
        {one.name,
         one.ranks,
         nccl_ ? "nccl" : "sockets",
         epoch,
         state,
         one.sent_bytes,
         one.received_bytes,
         one.operations,
         one.operations_per_step,
         one.used ? seconds(now - *one.used) : -1}
    );
  }
  return listed;
}

}  // namespace gradsync::engine
