#include "device/collective/collective_run.hpp"

#include "device/device_error.hpp"
#include "device/failure.hpp"
#include "device/step/bucket_step.hpp"
#include "device/transfer/node_outputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace gradsync::device {

namespace {

constexpr std::size_t kUnderWay = 2;

}  // namespace

CollectiveRun::CollectiveRun(
    PlanId id,
    LoadedPlan& plan,
    LaneCollectives& collectives,
    NodePasses& node_passes,
    const StepPasses& passes,
    const std::atomic<bool>& cancel
)
    : id_(id),
      plan_(plan),
      collectives_(collectives),
      node_passes_(node_passes),
      passes_(passes),
      cancel_(cancel),
      program_(make_collective_program(plan.layout(), *plan.nodes())),
      work_(node_passes.make_blocks(plan, program_.staging_bytes)),
      staging_(work_->memory(), program_.staging_bytes),
      loaded_(collectives.load(id, *plan.layout().nodes.communicators, program_.step(), *this)) {}

CollectiveRun::~CollectiveRun() { collectives_.unload(id_); }

Failed CollectiveRun::about(Tag tag) const {
  Failed about;
  about.plan = id_;
  about.tag = tag;
  return about;
}

Failed CollectiveRun::failed(Tag tag, const End& end) const {
  Failed failed = about(tag);
  failed.aborted = end.aborted && tag <= *end.aborted;
  failed.message = failed.aborted ? "aborted" : end.message;
  failed.lane_lost = end.lane_lost;
  failed.wire_lost = !failed.aborted && !end.lane_lost;
  return failed;
}

std::optional<LaneReport> CollectiveRun::connect(ConnectNodes& command) {
  if (link_ != Link::None) {
    throw DeviceError(fmt::format("plan {} has had its communicators: they are given once", command.plan));
  }
  check_fit(command.connections.empty(), [] { return std::string("its sums travel by communicators"); });
  collectives_.connect(id_, command.communicators);
  link_ = Link::Connecting;
  return std::nullopt;
}

/// Whether something of the bucket does. Throws DeviceError where it cannot.
bool CollectiveRun::may_travel(const ReduceBucket& command) const {
  if (command.bucket >= program_.buckets.size() || program_.buckets[command.bucket].empty()) {
    return false;
  }
  if (link_ == Link::Failed) {
    throw DeviceError::wire_lost(failure_, std::nullopt);
  }
  if (link_ != Link::Connected) {
    throw DeviceError(fmt::format("plan {} is not connected to other nodes yet", command.plan));
  }
  return true;
}

/// A bucket whose sums are made holds them for its first command, also where its report is yet to come.
void CollectiveRun::check_once(const ReduceBucket& command) const {
  const auto is_same = [&](const Reduction& other) { return !other.failure && other.command.bucket == command.bucket; };
  if (std::ranges::any_of(reductions_, is_same)) {
    throw DeviceError(fmt::format("bucket {} is being reduced already", command.bucket));
  }
}

void CollectiveRun::begin_step_of(Tag tag) {
  if (last_tag_ != tag) {
    collectives_.begin_step(id_);
    last_tag_ = tag;
  }
}

/// A command that fails is reported in its turn as well.
void CollectiveRun::begin(ReduceBucket& command) {
  const auto start = std::chrono::steady_clock::now();
  Reduction reduction;
  try {
    passes_.throw_if_cancelled();
    check_once(command);
    const bool travels = may_travel(command);
    begin_bucket(plan_, command);
    if (travels) {
      begin_step_of(command.tag);
    }
    passes_.reduce(plan_, command);
  } catch (...) {
    reduction.failure = failure_by_exception(about(command.tag));
  }
  reduction.command = std::move(command);
  reduction.busy_s = seconds(std::chrono::steady_clock::now() - start);
  reductions_.push_back(std::move(reduction));
  finish_reductions();
}

const std::vector<NodeCollective>& CollectiveRun::program_of(const Reduction& reduction) const {
  static const std::vector<NodeCollective> kNone;
  return reduction.failure ? kNone : program_.buckets[reduction.command.bucket];
}

bool CollectiveRun::advance() {
  if (cancel_.load(std::memory_order_relaxed) || reductions_.empty()) {
    return false;
  }
  try {
    return go_on();
  } catch (...) {  // a launch is refused, or the device failed
    const Failed failed = failure_by_exception(about(0));
    fail_all({failed.message, failed.lane_lost, {}});
    end_communicators();
    return false;
  }
}

bool CollectiveRun::go_on() {
  const auto start = std::chrono::steady_clock::now();
  const std::size_t results = plan_results();
  const std::size_t first_sum = flights_.size();
  plan_sums();
  if (results == 0 && first_sum == flights_.size()) {
    return false;
  }
  Reduction& worked_on = *flights_.front().reduction;
  work_->run();
  if (cancel_.load(std::memory_order_relaxed)) {
    return false;  // the Abort is next
  }
  worked_on.busy_s += seconds(std::chrono::steady_clock::now() - start);
  for (std::size_t at = first_sum; at < flights_.size(); ++at) {
    launch(flights_[at]);
  }
  for (std::size_t done = 0; done < results; ++done) {
    ++flights_.front().reduction->written;
    flights_.pop_front();
    staging_.give_back();
  }
  finish_reductions();
  return !reductions_.empty();
}

/// Operations of a job are done in their order.
std::size_t CollectiveRun::plan_results() {
  std::size_t results = 0;
  for (; results < flights_.size() && flights_[results].state == Flight::State::Done; ++results) {
    const Flight& flight = flights_[results];
    for (const Sum& sum : flight.sums) {
      note_flags(flight, sum);
      work_->add(BlockTask::Kind::Join, flight.collective->planned.bucket, *sum.block, sum.staged);
    }
  }
  return results;
}

void CollectiveRun::plan_sums() {
  for (Reduction& reduction : reductions_) {
    while (reduction.begun < program_of(reduction).size()) {
      if (flights_.size() >= kUnderWay || !begin_flight(reduction)) {
        return;  // later ones wait for it: the order of launches is one
      }
    }
  }
}

/// Gives the next collective its staging memory. False: there is no room yet.
bool CollectiveRun::begin_flight(Reduction& reduction) {
  const NodeCollective& collective = program_of(reduction)[reduction.begun];
  std::byte* const memory = staging_.take(collective.staging_bytes);
  if (memory == nullptr) {
    return false;
  }
  ++reduction.begun;
  Flight& flight = flights_.emplace_back();
  flight.reduction = &reduction;
  flight.collective = &collective;
  flight.number = ++operations_;
  const std::size_t width = plan::size_of(transfer_of(flight).sum);
  const std::size_t places = collective.blocks.size();
  for (std::size_t at = 0; at < places; ++at) {
    flight.places.push_back({memory + collective.begins[at] * width, {}, nullptr});
  }
  const bool scatters = collective.planned.kind == CollectiveKind::ReduceScatter;
  flight.result = scatters ? memory + plan::align_up(collective.begins.back() * width) : memory;
  flight.sums = sums_of(flight);
  for (std::size_t at = 0; at < places; ++at) {
    if (const std::uint32_t block = collective.blocks[at]; block != plan::kNoBlock) {
      work_->add(BlockTask::Kind::Sum, collective.planned.bucket, bucket_of(flight).blocks[block], flight.places[at]);
    }
  }
  write_flags(flight);
  return true;
}

std::vector<CollectiveRun::Sum> CollectiveRun::sums_of(const Flight& flight) const {
  const NodeCollective& collective = *flight.collective;
  std::vector<Sum> sums;
  const auto add = [&](std::uint32_t block, std::byte* at) {
    if (block != plan::kNoBlock) {
      sums.push_back({&bucket_of(flight).blocks[block], {at, {at}, nullptr}});
    }
  };
  if (collective.planned.kind == CollectiveKind::ReduceScatter) {
    add(collective.blocks[collective.own], flight.result);
    return sums;
  }
  for (std::size_t at = 0; at < collective.blocks.size(); ++at) {
    add(collective.blocks[at], flight.places[at].own);
  }
  return sums;
}

void CollectiveRun::launch(Flight& flight) {
  flight.state = Flight::State::Launched;
  collectives_.launch(id_, flight.collective->planned, flight.places.front().own, flight.result, flight.number);
}

void CollectiveRun::finish_reductions() {
  while (!reductions_.empty() && reductions_.front().written == program_of(reductions_.front()).size()) {
    finish(reductions_.front());
    reductions_.pop_front();
  }
}

void CollectiveRun::finish(Reduction& reduction) {
  const ReduceBucket& command = reduction.command;
  if (!reduction.failure) {
    try {
      const auto start = std::chrono::steady_clock::now();
      end_node_bucket(plan_, command, node_passes_, passes_);
      reduction.busy_s += seconds(std::chrono::steady_clock::now() - start);
    } catch (...) {
      reduction.failure = failure_by_exception(about(command.tag));
    }
  }
  if (reduction.failure) {
    reports_.emplace_back(std::move(*reduction.failure));
  } else {
    reports_.emplace_back(Reduced{command.plan, command.tag, command.bucket, reduction.busy_s});
  }
}

void CollectiveRun::answer_connect(const End& end) {
  if (link_ == Link::Connecting) {
    reports_.emplace_back(failed(0, end));
  }
}

/// The staging memory is not given back: what is under way may write to it until it is aborted.
void CollectiveRun::fail_all(const End& end) {
  answer_connect(end);
  if (link_ != Link::Failed) {
    failure_ = end.message;
    link_ = Link::Failed;
  }
  for (const Reduction& reduction : reductions_) {
    reports_.emplace_back(reduction.failure ? *reduction.failure : failed(reduction.command.tag, end));
  }
  reductions_.clear();
  flights_.clear();
}

std::optional<LaneReport> CollectiveRun::abort(const Abort& command) {
  const bool concerned =
      std::ranges::any_of(reductions_, [&](const Reduction& each) { return each.command.tag <= command.tag; });
  if (!concerned && last_tag_ && command.tag < *last_tag_) {
    return Aborted{id_, command.tag};  // it is over
  }
  fail_all({fmt::format("attempt {} was aborted, and its communicators end", command.tag), false, command.tag});
  collectives_.abort(id_);
  aborts_.push_back(command.tag);
  return std::nullopt;
}

void CollectiveRun::give_up() {
  const bool writes = link_ == Link::Connecting || !flights_.empty();
  fail_all({"the lane ends, and waits for no other node"});
  if (writes) {
    end_communicators();
  }
}

/// What is under way may write to the staging memory until `Aborted`, whether an Abort comes or not.
void CollectiveRun::end_communicators() {
  if (!ending_ && aborts_.empty()) {
    collectives_.abort(id_);
    ending_ = true;
  }
}

std::optional<Tag> CollectiveRun::under_way() const {
  if (!reductions_.empty()) {
    return reductions_.front().command.tag;
  }
  if (!aborts_.empty()) {
    return aborts_.front();
  }
  return link_ == Link::Connecting || ending_ ? std::optional<Tag>(0) : std::nullopt;
}

void CollectiveRun::take_reports(std::vector<LaneReport>& reports) {
  std::ranges::move(reports_, std::back_inserter(reports));
  reports_.clear();
}

}  // namespace gradsync::device
