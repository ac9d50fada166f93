#pragma once
// The flight recorder of one job: what became of its last attempts and their buckets, in rings of a fixed size. It is
// told by the job, in the order in which things happen, and decides nothing (ADR 0035).
//
// Memory: 4,096 records of 64 bytes for buckets, as many for links in a job over nodes, and 512 of 128 bytes for
// attempts: 320 KiB, or 576. It is asked for when the first plan begins, and pages of it come as they are written.
// Nothing is allocated after that. Thread: io.

#include "device/lane.hpp"
#include "engine/recorder/flight_record.hpp"
#include "engine/types.hpp"
#include "plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace gradsync::engine {

/// The last `most` values; older ones are written over. A value is named by how many came before it.
template <typename T>
class Ring {
 public:
  explicit Ring(std::size_t most) : most_(most) {}

  /// Takes the address space, but none of the memory yet.
  void reserve() { values_.reserve(most_); }

  T& add() {
    T& value = values_.size() < most_ ? values_.emplace_back() : (values_[added_ % most_] = T{});
    ++added_;
    return value;
  }

  [[nodiscard]] std::uint64_t added() const { return added_; }

  [[nodiscard]] std::uint64_t first() const { return added_ - values_.size(); }

  [[nodiscard]] bool empty() const { return values_.empty(); }

  /// `number`: from `first` up to `added`.
  [[nodiscard]] T& operator[](std::uint64_t number) { return values_[number % most_]; }

  [[nodiscard]] const T& operator[](std::uint64_t number) const { return values_[number % most_]; }

  /// The oldest first.
  [[nodiscard]] std::vector<T> copy() const {
    std::vector<T> all;
    all.reserve(values_.size());
    for (std::uint64_t number = first(); number < added_; ++number) {
      all.push_back((*this)[number]);
    }
    return all;
  }

 private:
  std::size_t most_;
  std::uint64_t added_ = 0;
  std::vector<T> values_;
};

class FlightRecorder {
 public:
  static constexpr std::size_t kBuckets = 4096;
  static constexpr std::size_t kLinks = 4096;
  static constexpr std::size_t kAttempts = 512;
  /// Between two dumps of one job that its failures ask for.
  static constexpr Milliseconds kBetweenDumps{10'000};

  /// The attempts from now on are of this plan. `over_nodes`: buckets may travel.
  void use_plan(const plan::Plan& plan, bool over_nodes);

  // Words of attempts that are older than the newest one are not recorded any more.
  void on_ready(std::uint64_t word, std::uint32_t bucket, std::int64_t rank, TimePoint now);
  void on_asked(std::uint64_t word, std::int64_t rank, std::int64_t step, TimePoint now);
  void on_launched(std::uint64_t word, std::uint32_t bucket, TimePoint now);
  void on_reduced(std::uint64_t word, const device::Reduced& report, TimePoint now);

  void on_measured(std::uint64_t word, TimePoint now) { attempt(word, now).measured = now; }

  void on_decided(std::uint64_t word, TimePoint now) { attempt(word, now).decided = now; }

  void on_voted(std::uint64_t word, TimePoint now) { attempt(word, now).voted = now; }

  void on_done(std::uint64_t word, TimePoint now);
  void on_failed(std::uint64_t word, const Error& error, TimePoint now);

  /// Whether a failure of now may have a dump; then the next may not for a while.
  [[nodiscard]] bool takes_dump(TimePoint now);

  [[nodiscard]] const Ring<BucketRecord>& buckets() const { return buckets_; }

  [[nodiscard]] const Ring<AttemptRecord>& attempts() const { return attempts_; }

  [[nodiscard]] const Ring<LinkRecord>& links() const { return links_; }

 private:
  /// A bucket of the plan.
  struct Slot {
    std::uint64_t record = 0;  ///< the last one of this bucket; another may have its place by now
    std::uint64_t bytes = 0;
  };

  /// That of the attempt, which is the newest; a new one where the word is. What is said of an older one is written
  /// where nobody reads it.
  AttemptRecord& attempt(std::uint64_t word, TimePoint now) {
    if (!attempts_.empty() && attempts_[attempts_.added() - 1].word == word) [[likely]] {
      return attempts_[attempts_.added() - 1];
    }
    return other_attempt(word, now);
  }

  AttemptRecord& other_attempt(std::uint64_t word, TimePoint now);
  BucketRecord& bucket(std::uint64_t word, std::uint32_t bucket);

  Ring<BucketRecord> buckets_{kBuckets};
  Ring<LinkRecord> links_{kLinks};
  Ring<AttemptRecord> attempts_{kAttempts};
  std::vector<Slot> slots_;  ///< by bucket of the plan
  AttemptRecord unread_;
  std::optional<TimePoint> dumped_;
};

}  // namespace gradsync::engine
