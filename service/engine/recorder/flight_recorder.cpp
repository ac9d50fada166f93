#include "engine/recorder/flight_recorder.hpp"

#include <algorithm>

namespace gradsync::engine {

namespace {

Duration after(double time_s) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(time_s)); }

}  // namespace

void FlightRecorder::use_plan(const plan::Plan& plan, bool over_nodes) {
  buckets_.reserve();
  attempts_.reserve();
  if (over_nodes) {
    links_.reserve();
  }
  slots_.assign(plan.buckets.size(), {});
  for (std::size_t bucket = 0; bucket < slots_.size(); ++bucket) {
    slots_[bucket].bytes = static_cast<std::uint64_t>(plan.buckets[bucket].size_bytes);
  }
}

AttemptRecord& FlightRecorder::other_attempt(std::uint64_t word, TimePoint now) {
  if (!attempts_.empty() && attempts_[attempts_.added() - 1].word > word) {
    return unread_;
  }
  AttemptRecord& fresh = attempts_.add();
  fresh.word = word;
  fresh.begun = now;
  return fresh;
}

/// `bucket` is one of the plan.
BucketRecord& FlightRecorder::bucket(std::uint64_t word, std::uint32_t bucket) {
  Slot& slot = slots_[bucket];
  if (!buckets_.empty()) {
    BucketRecord& known = buckets_[slot.record];
    if (known.word == word && known.bucket == bucket) [[likely]] {
      return known;
    }
  }
  slot.record = buckets_.added();
  BucketRecord& fresh = buckets_.add();
  fresh.word = word;
  fresh.bucket = bucket;
  fresh.bytes = slot.bytes;
  return fresh;
}

void FlightRecorder::on_ready(std::uint64_t word, std::uint32_t number, std::int64_t rank, TimePoint now) {
  if (number >= slots_.size() || &attempt(word, now) == &unread_) {
    return;
  }
  BucketRecord& record = bucket(word, number);
  if (record.ready++ == 0) {
    record.first_ready = now;
  }
  record.last_ready = now;
  record.last_rank = static_cast<std::int32_t>(rank);
}

void FlightRecorder::on_asked(std::uint64_t word, std::int64_t rank, std::int64_t step, TimePoint now) {
  AttemptRecord& record = attempt(word, now);
  if (record.asks++ == 0) {
    record.first_ask = now;
    record.step = step;
  }
  record.ask_before_last = record.last_ask;
  record.last_ask = now;
  record.last_rank = static_cast<std::int32_t>(rank);
}

void FlightRecorder::on_launched(std::uint64_t word, std::uint32_t number, TimePoint now) {
  AttemptRecord& of_attempt = attempt(word, now);
  if (&of_attempt == &unread_) {
    return;
  }
  BucketRecord& record = bucket(word, number);
  if (record.lanes++ > 0) {
    return;  // another lane has it as well
  }
  record.launched = now;
  record.order = ++of_attempt.launched;
  record.state = BucketState::Launched;
}

void FlightRecorder::on_reduced(std::uint64_t word, const device::Reduced& report, TimePoint now) {
  AttemptRecord& of_attempt = attempt(word, now);
  if (&of_attempt == &unread_) {
    return;
  }
  BucketRecord& record = bucket(word, report.bucket);
  if (record.lanes > 0) {
    --record.lanes;
  }
  if (record.lanes == 0) {
    record.done = now;
    record.state = BucketState::Reduced;
    ++of_attempt.reduced;
  }
  for (const device::LinkUse& use : report.links) {
    LinkRecord& link = links_.add();
    link.word = word;
    link.bucket = report.bucket;
    link.node = use.node;
    link.sent_bytes = use.sent_bytes;
    link.received_bytes = use.received_bytes;
    link.launched = record.launched;
    link.sent = record.launched + after(use.sent_s);
    link.received = record.launched + after(use.received_s);
    link.partials = use.partials_s > 0 ? record.launched + after(use.partials_s) : TimePoint{};
  }
}

void FlightRecorder::on_done(std::uint64_t word, TimePoint now) {
  AttemptRecord& record = attempt(word, now);
  record.ended = now;
  record.state = AttemptState::Done;
}

void FlightRecorder::on_failed(std::uint64_t word, const Error& error, TimePoint now) {
  AttemptRecord& record = attempt(word, now);
  record.ended = now;
  record.state = AttemptState::Failed;
  record.error = error.code;
  std::vector<std::int64_t> ranks = error.ranks;
  if (ranks.empty() && error.rank) {
    ranks.push_back(*error.rank);
  }
  record.missing_count = static_cast<std::uint16_t>(std::min<std::size_t>(ranks.size(), 0xFFFF));
  for (std::size_t i = 0; i < std::min(ranks.size(), AttemptRecord::kMissing); ++i) {
    record.missing[i] = static_cast<std::int32_t>(ranks[i]);
  }
  for (const Slot& slot : slots_) {
    if (!buckets_.empty() && buckets_[slot.record].word == word &&
        buckets_[slot.record].state == BucketState::Launched) {
      buckets_[slot.record].state = BucketState::Failed;
    }
  }
}

bool FlightRecorder::takes_dump(TimePoint now) {
  if (dumped_ && now - *dumped_ < kBetweenDumps) {
    return false;
  }
  dumped_ = now;
  return true;
}

}  // namespace gradsync::engine
