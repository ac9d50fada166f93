#pragma once
// The operations of one job on this GPU, in their order: launched one after the other on a stream of their own, and
// done when three things hold, looked at in this order: the stream has passed them, NCCL says that their communicator
// has no error, and nobody has failed or aborted it. NCCL's kernels end normally when they are aborted, so the stream
// alone says nothing.
//
// A launch that NCCL says is in progress is not on the stream yet: neither a mark nor another launch follows it until
// it is. Thread: that of the lane; nothing here waits.

#include "device/nccl/collective_device.hpp"
#include "device/nccl/communicator_table.hpp"
#include "device/nccl/launch_order.hpp"
#include "device/nccl/nccl_library.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::device {

struct QueuedCollective {
  PlanId plan = 0;  ///< 0: a communicator is warmed up
  std::uint64_t number = 0;
  CommunicatorSlot slot = 0;
  NcclCommunicator* communicator = nullptr;
  CollectiveKind kind = CollectiveKind::AllReduce;
  NcclType type = NcclType::Float32;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t elements = 0;
};

class CollectiveQueue {
 public:
  using Error = std::function<void(CommunicatorSlot slot, const std::string& message)>;
  using Counts = std::function<bool(CommunicatorSlot slot)>;

  CollectiveQueue(const NcclLibrary& library, std::unique_ptr<CollectiveStream> stream)
      : library_(library), stream_(std::move(stream)) {}

  void add(const QueuedCollective& one) { waiting_.push_back(one); }

  /// Goes on, and appends what is done. The first error is told, and ends the call; nothing counts behind it, since
  /// `counts` is false then.
  void advance(const Counts& counts, const Error& error, std::vector<QueuedCollective>& done);

  /// Everything that is not done, in its order; it is forgotten. It may still run until its communicators are aborted.
  [[nodiscard]] std::vector<QueuedCollective> drop();

  [[nodiscard]] bool empty() const { return waiting_.empty() && !launching_ && running_.empty(); }

 private:
  struct Running {
    QueuedCollective one;
    std::uint64_t mark = 0;
  };

  [[nodiscard]] bool go_on(const Error& error);
  [[nodiscard]] bool launch_next(const Error& error);
  [[nodiscard]] bool look_for_errors(const Error& error) const;
  [[nodiscard]] NcclResult state_of(const QueuedCollective& one) const;
  [[nodiscard]] NcclResult call(const QueuedCollective& one);
  void note_launched(const QueuedCollective& one);
  [[nodiscard]] std::string words_for(const QueuedCollective& one, NcclResult result) const;

  const NcclLibrary& library_;
  std::unique_ptr<CollectiveStream> stream_;
  std::deque<QueuedCollective> waiting_;
  std::optional<QueuedCollective> launching_;
  std::deque<Running> running_;  ///< on the stream
  std::uint64_t marks_ = 0;
};

}  // namespace gradsync::device
