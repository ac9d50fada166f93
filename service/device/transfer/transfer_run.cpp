#include "device/transfer/transfer_run.hpp"

#include "base/assert.hpp"
#include "base/clock.hpp"
#include "device/device_error.hpp"
#include "device/failure.hpp"
#include "device/step/bucket_step.hpp"
#include "device/transfer/node_outputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gradsync::device {

namespace {

/// The sums that one call of `advance` makes, reads or writes: a fraction of a millisecond, in which commands of other
/// plans wait.
constexpr std::uint64_t kStepBytes = 4U << 20;

Failed about_reduction(const ReduceBucket& command) {
  Failed failed;
  failed.plan = command.plan;
  failed.tag = command.tag;
  return failed;
}

}  // namespace

TransferRun::TransferRun(
    LoadedPlan& plan,
    WorkerPool& pool,
    const StepPasses& passes,
    const std::atomic<bool>& cancel,
    const MakeWire& make_wire,
    std::function<void()> wake
)
    : plan_(plan),
      pool_(pool),
      passes_(passes),
      cancel_(cancel),
      pass_(plan, static_cast<std::size_t>(pool.threads()), cancel),
      staging_(plan.nodes()->staging_bytes),
      make_wire_(make_wire),
      wake_(std::move(wake)) {}

const plan::BucketTransfer& TransferRun::transfer_of(const Reduction& reduction) const {
  return plan_.layout().nodes.transfers[reduction.command.bucket];
}

WireMessage TransferRun::name_of(const Reduction& reduction, const plan::TransferMessage& message) const {
  return {message.peer, message.payload, reduction.command.tag, reduction.command.bucket, message.number};
}

std::optional<LaneReport> TransferRun::connect(ConnectNodes& command) {
  check_fit(command.communicators.empty(), [] { return std::string("its sums travel over connections"); });
  if (wire_ || lost_) {
    throw DeviceError(fmt::format("plan {} has had its connections: they are given once", command.plan));
  }
  std::vector<plan::TransferNode> given;
  for (const NodeConnection& connection : command.connections) {
    given.push_back(connection.node);
    if (!connection.partials.valid() || !connection.results.valid()) {
      throw DeviceError(fmt::format("the connection to node {} lacks a descriptor", connection.node));
    }
  }
  std::ranges::sort(given);
  if (given != plan_.nodes()->peers) {
    throw DeviceError(fmt::format(
        "connections to nodes {} are given, and plan {} exchanges messages with nodes {}",
        fmt::join(given, ", "),
        command.plan,
        fmt::join(plan_.nodes()->peers, ", ")
    ));
  }
  if (!given.empty()) {
    if (!make_wire_) {
      throw DeviceError("this lane has no wire to other nodes");
    }
    wire_ = make_wire_(std::move(command.connections), std::move(wake_));
  }
  return Connected{command.plan};
}

void TransferRun::check_wire(const ReduceBucket& command) const {
  if (lost_) {
    throw DeviceError::wire_lost(lost_->message, lost_->node);
  }
  if (!wire_) {
    throw DeviceError(fmt::format("plan {} is not connected to other nodes yet", command.plan));
  }
}

/// A bucket whose sums are made holds them for its first command, also where its report is yet to come.
void TransferRun::check_once(const ReduceBucket& command) const {
  const auto is_same = [&](const Reduction& other) { return !other.failure && other.command.bucket == command.bucket; };
  if (std::ranges::any_of(reductions_, is_same)) {
    throw DeviceError(fmt::format("bucket {} is being reduced already", command.bucket));
  }
}

/// A command that fails is reported in its turn as well.
void TransferRun::begin(ReduceBucket& command) {
  const auto start = std::chrono::steady_clock::now();
  Reduction reduction;
  try {
    passes_.throw_if_cancelled();
    check_once(command);
    const NodeBucket* bucket =
        command.bucket < plan_.nodes()->buckets.size() ? &plan_.nodes()->buckets[command.bucket] : nullptr;
    if (bucket != nullptr && !bucket->blocks.empty()) {
      check_wire(command);
    }
    begin_bucket(plan_, command);
    passes_.reduce(plan_, command);
    reduction.bucket = bucket;
    reduction.blocks.resize(bucket->blocks.size());
    last_tag_ = std::max(last_tag_.value_or(command.tag), command.tag);
  } catch (...) {
    reduction.failure = failure_by_exception(about_reduction(command));
    reduction.blocks.clear();
  }
  reduction.command = std::move(command);
  reduction.since = start;
  reduction.busy_s = seconds(std::chrono::steady_clock::now() - start);
  reductions_.push_back(std::move(reduction));
  finish_reductions();
}

bool TransferRun::advance() {
  if (cancel_.load(std::memory_order_relaxed) || reductions_.empty()) {
    return false;
  }
  try {
    return go_on();
  } catch (const std::exception& error) {  // memory ran out, or the wire refuses what the program says
    fail_all({error.what(), {}}, std::nullopt);
    return false;
  }
}

bool TransferRun::go_on() {
  const auto start = std::chrono::steady_clock::now();
  take_messages();
  release();
  std::uint64_t budget = kStepBytes;
  plan_joins(budget);
  plan_copies(budget);
  plan_sums(budget);
  pass_.run(pool_);
  if (cancel_.load(std::memory_order_relaxed)) {
    return false;  // the Abort is next; what was left out is never sent
  }
  if (!works_.empty()) {
    works_.front().reduction->busy_s += seconds(std::chrono::steady_clock::now() - start);
  }
  const bool worked = !works_.empty();
  for (const Work& work : works_) {
    end_work(work);
  }
  works_.clear();
  release();
  finish_reductions();
  if (const std::optional<WireFault> fault = wire_ ? wire_->fault() : std::nullopt) {
    // The connections stay open until the attempt is aborted: their ends would be taken for faults of this node.
    fail_all({fault->message, fault->peer}, std::nullopt);
    return false;
  }
  return worked && !reductions_.empty();
}

void TransferRun::take_messages() {
  if (!wire_ || lost_) {
    return;
  }
  done_.clear();
  wire_->take_done(done_);
  for (const WireDone& done : done_) {
    note(done);
  }
}

void TransferRun::note(const WireDone& done) {
  const auto found = std::ranges::find_if(reductions_, [&](const Reduction& reduction) {
    return reduction.command.bucket == done.message.bucket && reduction.command.tag == done.message.tag &&
           !reduction.failure;
  });
  GRADSYNC_ASSERT(found != reductions_.end(), "the wire is done with a message of a reduction that is under way");
  const std::uint32_t number =
      found->bucket->block_of.at({done.message.peer, done.message.payload, done.received}).at(done.message.number);
  Block& block = found->blocks[number];
  note_use(*found, done, found->bucket->blocks[number]);
  if (!done.received) {
    --block.sending;
    return;
  }
  --block.missing;
  if (!found->bucket->blocks[number].owned) {
    note_flags(*found, number);
    arrived_.push_back({&*found, number});
  }
}

void TransferRun::note_use(Reduction& reduction, const WireDone& done, const NodeBlock& block) const {
  const plan::BucketTransfer& transfer = transfer_of(reduction);
  const std::uint64_t bytes = plan::message_bytes(transfer, transfer.blocks[block.block], done.message.payload);
  auto use = std::ranges::lower_bound(reduction.links, done.message.peer, {}, &LinkUse::node);
  if (use == reduction.links.end() || use->node != done.message.peer) {
    use = reduction.links.insert(use, LinkUse{done.message.peer});
  }
  const double now_s = seconds(std::chrono::steady_clock::now() - reduction.since);
  if (!done.received) {
    use->sent_bytes += bytes;
    use->sent_s = now_s;
    return;
  }
  use->received_bytes += bytes;
  use->received_s = now_s;
  if (done.message.payload == plan::Payload::Partial) {
    use->partials_s = now_s;
  }
}

void TransferRun::plan_work(BlockTask::Kind kind, Reduction& reduction, std::uint32_t number, std::uint64_t& budget) {
  const plan::BucketTransfer& transfer = transfer_of(reduction);
  const NodeBlock& block = reduction.bucket->blocks[number];
  const std::uint64_t bytes = transfer.blocks[block.block].elements * plan::size_of(transfer.sum);
  budget -= std::min(budget, bytes);
  pass_.add(kind, reduction.command.bucket, block, reduction.blocks[number].staged);
  works_.push_back({kind, &reduction, number});
}

void TransferRun::plan_joins(std::uint64_t& budget) {
  for (Reduction& reduction : reductions_) {
    for (; reduction.joined < reduction.blocks.size(); ++reduction.joined) {
      if (!reduction.bucket->blocks[reduction.joined].owned) {
        continue;
      }
      const Block& block = reduction.blocks[reduction.joined];
      if (budget == 0 || !block.summed || block.missing != 0) {
        return;  // later ones wait for it, whichever has all messages
      }
      note_flags(reduction, reduction.joined);
      plan_work(BlockTask::Kind::Join, reduction, reduction.joined, budget);
    }
  }
}

void TransferRun::plan_copies(std::uint64_t& budget) {
  for (; budget != 0 && !arrived_.empty(); arrived_.pop_front()) {
    plan_work(BlockTask::Kind::Copy, *arrived_.front().reduction, arrived_.front().block, budget);
  }
}

void TransferRun::plan_sums(std::uint64_t& budget) {
  for (Reduction& reduction : reductions_) {
    for (; reduction.begun < reduction.blocks.size(); ++reduction.begun) {
      if (budget == 0 || !begin_block(reduction)) {
        return;
      }
      plan_work(BlockTask::Kind::Sum, reduction, reduction.begun, budget);
    }
  }
}

/// Blocks give their memory back in the order in which they began.
void TransferRun::release() {
  for (Reduction& reduction : reductions_) {
    for (; reduction.released < reduction.begun; ++reduction.released) {
      const Block& block = reduction.blocks[reduction.released];
      if (!block.summed || !block.written || block.missing != 0 || block.sending != 0) {
        return;
      }
      staging_.give_back();
    }
    if (reduction.released < reduction.blocks.size()) {
      return;
    }
  }
}

void TransferRun::finish_reductions() {
  while (!reductions_.empty() && reductions_.front().released == reductions_.front().blocks.size()) {
    finish(reductions_.front());
    reductions_.pop_front();
  }
}

void TransferRun::finish(Reduction& reduction) {
  const ReduceBucket& command = reduction.command;
  if (!reduction.failure) {
    try {
      const auto start = std::chrono::steady_clock::now();
      end_node_bucket(plan_, command, outputs_, passes_);
      reduction.busy_s += seconds(std::chrono::steady_clock::now() - start);
    } catch (...) {
      reduction.failure = failure_by_exception(about_reduction(command));
    }
  }
  if (reduction.failure) {
    reports_.emplace_back(std::move(*reduction.failure));
  } else {
    reports_.emplace_back(Reduced{
        command.plan, command.tag, command.bucket, reduction.busy_s, std::move(reduction.links)});
  }
}

std::optional<LaneReport> TransferRun::abort(const Abort& command) {
  const Tag tag = command.tag;
  const bool concerned =
      std::ranges::any_of(reductions_, [&](const Reduction& each) { return each.command.tag <= tag; });
  const bool over = !concerned && last_tag_ && tag < *last_tag_;
  if (!over) {
    wire_.reset();
    fail_all({fmt::format("attempt {} was aborted, and its connections were closed", tag), {}}, tag);
  }
  return Aborted{command.plan, tag};
}

std::optional<Tag> TransferRun::under_way() const {
  return reductions_.empty() ? std::nullopt : std::optional(reductions_.front().command.tag);
}

void TransferRun::give_up() {
  wire_.reset();
  fail_all({"the lane ends, and waits for no other node", {}}, std::nullopt);
}

void TransferRun::fail_all(Lost lost, std::optional<Tag> aborted) {
  lost_ = lost_ ? std::move(lost_) : std::move(lost);
  arrived_.clear();
  works_.clear();
  for (Reduction& reduction : reductions_) {
    Failed failed = about_reduction(reduction.command);
    failed.aborted = aborted && reduction.command.tag <= *aborted;
    failed.message = failed.aborted ? "aborted" : lost_->message;
    failed.wire_lost = !failed.aborted;
    failed.node = failed.aborted ? std::nullopt : lost_->node;
    reports_.emplace_back(std::move(failed));
  }
  reductions_.clear();
  staging_.clear();
}

void TransferRun::take_reports(std::vector<LaneReport>& reports) {
  std::ranges::move(reports_, std::back_inserter(reports));
  reports_.clear();
}

}  // namespace gradsync::device
