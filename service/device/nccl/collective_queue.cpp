#include "device/nccl/collective_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace gradsync::device {

NcclResult CollectiveQueue::state_of(const QueuedCollective& one) const {
  NcclResult state = NcclResult::Success;
  const NcclResult asked = library_.get_async_error(one.communicator, &state);
  return asked == NcclResult::Success ? state : asked;
}

std::string CollectiveQueue::words_for(const QueuedCollective& one, NcclResult result) const {
  constexpr const char* kKinds[] = {"all-reduce", "reduce-scatter", "all-gather"};
  return fmt::format(
      "{} of {} elements: {}",
      kKinds[static_cast<std::size_t>(one.kind)],
      one.elements,
      library_.words_for(result, one.communicator)
  );
}

NcclResult CollectiveQueue::call(const QueuedCollective& one) {
  NcclStream* const stream = stream_->handle();
  switch (one.kind) {
    case CollectiveKind::AllReduce:
      return library_.all_reduce(
          one.from, one.to, one.elements, one.type, NcclOperation::Sum, one.communicator, stream
      );
    case CollectiveKind::ReduceScatter:
      return library_.reduce_scatter(
          one.from, one.to, one.elements, one.type, NcclOperation::Sum, one.communicator, stream
      );
    case CollectiveKind::AllGather:
      return library_.all_gather(one.from, one.to, one.elements, one.type, one.communicator, stream);
  }
  return NcclResult::InvalidArgument;
}

void CollectiveQueue::note_launched(const QueuedCollective& one) {
  stream_->mark();
  running_.push_back({one, ++marks_});
}

/// False: nothing more can be launched now.
bool CollectiveQueue::go_on(const Error& error) {
  if (!launching_) {
    return true;
  }
  const NcclResult state = state_of(*launching_);
  if (state == NcclResult::InProgress) {
    return false;
  }
  const QueuedCollective launched = *std::exchange(launching_, std::nullopt);
  if (state != NcclResult::Success) {
    waiting_.push_front(launched);  // to be dropped with the others
    error(launched.slot, words_for(launched, state));
    return false;
  }
  note_launched(launched);
  return true;
}

bool CollectiveQueue::launch_next(const Error& error) {
  const QueuedCollective next = waiting_.front();
  const NcclResult result = call(next);
  if (result != NcclResult::Success && result != NcclResult::InProgress) {
    error(next.slot, words_for(next, result));
    return false;
  }
  waiting_.pop_front();
  if (result == NcclResult::InProgress) {
    launching_ = next;
    return false;
  }
  note_launched(next);
  return true;
}

/// A member that is gone is known before the stream gets anywhere, which it never may.
bool CollectiveQueue::look_for_errors(const Error& error) const {
  CommunicatorSlot asked = 0;
  for (const Running& running : running_) {
    if (running.one.slot == std::exchange(asked, running.one.slot)) {
      continue;
    }
    const NcclResult state = state_of(running.one);
    if (state != NcclResult::Success && state != NcclResult::InProgress) {
      error(running.one.slot, words_for(running.one, state));
      return false;
    }
  }
  return true;
}

void CollectiveQueue::advance(const Counts& counts, const Error& error, std::vector<QueuedCollective>& done) {
  bool may_launch = go_on(error);
  while (may_launch && !waiting_.empty()) {
    may_launch = launch_next(error);
  }
  const std::uint64_t passed = stream_->passed();
  while (!running_.empty() && running_.front().mark <= passed) {
    const QueuedCollective& one = running_.front().one;
    // Behind the stream: an error that ended the kernel is known by now.
    const NcclResult state = state_of(one);
    if (state != NcclResult::Success && state != NcclResult::InProgress) {
      error(one.slot, words_for(one, state));
      return;
    }
    if (state == NcclResult::InProgress || !counts(one.slot)) {
      return;
    }
    done.push_back(one);
    running_.pop_front();
  }
  (void)look_for_errors(error);
}

std::vector<QueuedCollective> CollectiveQueue::drop() {
  std::vector<QueuedCollective> dropped;
  std::ranges::transform(running_, std::back_inserter(dropped), &Running::one);
  if (launching_) {
    dropped.push_back(*launching_);
  }
  dropped.insert(dropped.end(), waiting_.begin(), waiting_.end());
  running_.clear();
  launching_.reset();
  waiting_.clear();
  return dropped;
}

}  // namespace gradsync::device
