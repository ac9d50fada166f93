#include "app/blackbox/flight_analysis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gradsync::app {

namespace {

using Kind = FlightFinding::Kind;
using engine::AttemptState;
using engine::BucketState;

const char* name_of(AttemptState state) { return state == AttemptState::Done ? "done" : "failed"; }

const char* name_of(BucketState state) {
  constexpr const char* kNames[] = {"collecting", "launched", "reduced", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

/// Two values of two nodes, and what they are of.
FlightFinding differs(
    const FlightView& a, const FlightView& b, const std::string& what, const std::string& of_a, const std::string& of_b
) {
  FlightFinding finding;
  finding.kind = Kind::Differs;
  finding.node = b.number();
  finding.peer = a.number();
  finding.sentence = fmt::format(
      "Nodes {} and {} differ in {}: {} on {}, {} on {}.", a.name(), b.name(), what, of_a, a.name(), of_b, b.name()
  );
  return finding;
}

/// The first difference in what lasts for the whole epoch.
std::optional<FlightFinding> differing_heads(const FlightView& a, const FlightView& b) {
  if (a.head->world_size != b.head->world_size) {
    return differs(a, b, "world_size", fmt::format("{}", a.head->world_size), fmt::format("{}", b.head->world_size));
  }
  if (a.head->epoch == b.head->epoch && !a.head->plan.empty() && !b.head->plan.empty() &&
      a.head->plan != b.head->plan) {
    return differs(a, b, fmt::format("the plan of epoch {}", a.head->epoch), a.head->plan, b.head->plan);
  }
  return std::nullopt;
}

std::optional<FlightFinding> differing_attempts(
    const FlightView& a, const FlightView& b, const rpc::DumpAttempt& of_a, const rpc::DumpAttempt& of_b
) {
  const std::string what = attempt_text({of_a.epoch, of_a.attempt}, std::nullopt);
  if (of_a.step && of_b.step && *of_a.step != *of_b.step) {
    return differs(a, b, "the step of " + what, fmt::format("{}", *of_a.step), fmt::format("{}", *of_b.step));
  }
  const bool ended = of_a.state != AttemptState::Open && of_b.state != AttemptState::Open;
  if (ended && of_a.state != of_b.state) {
    return differs(a, b, "what became of " + what, name_of(of_a.state), name_of(of_b.state));
  }
  if (of_a.state == AttemptState::Done && ended && of_a.launched != of_b.launched) {
    return differs(
        a,
        b,
        "the buckets of " + what,
        fmt::format("{} launched", of_a.launched),
        fmt::format("{} launched", of_b.launched)
    );
  }
  return std::nullopt;
}

/// `done`: the attempt is done on both.
std::optional<FlightFinding> differing_buckets(
    const FlightView& a, const FlightView& b, const rpc::DumpBucket& of_a, const rpc::DumpBucket& of_b, bool done
) {
  const std::string what = fmt::format(
      "bucket {} of {}", of_a.bucket, attempt_text({of_a.epoch, of_a.attempt}, of_a.step ? of_a.step : of_b.step)
  );
  if (of_a.bytes != of_b.bytes) {
    return differs(a, b, "the bytes of " + what, fmt::format("{}", of_a.bytes), fmt::format("{}", of_b.bytes));
  }
  if (of_a.order && of_b.order && *of_a.order != *of_b.order) {
    return differs(
        a, b, "the order of " + what, fmt::format("launch {}", *of_a.order), fmt::format("launch {}", *of_b.order)
    );
  }
  if (done && of_a.state != of_b.state) {
    return differs(a, b, "the state of " + what, name_of(of_a.state), name_of(of_b.state));
  }
  return std::nullopt;
}

/// The first difference of the attempt between two nodes that know it.
std::optional<FlightFinding> difference_in(const FlightView& a, const FlightView& b, AttemptKey key) {
  const rpc::DumpAttempt* const of_a = a.attempt(key);
  const rpc::DumpAttempt* const of_b = b.attempt(key);
  if (of_a == nullptr || of_b == nullptr) {
    return std::nullopt;
  }
  std::optional<FlightFinding> found = differing_attempts(a, b, *of_a, *of_b);
  const auto buckets = a.buckets.find(key);
  if (!found && buckets != a.buckets.end()) {
    const bool done = of_a->state == AttemptState::Done && of_b->state == AttemptState::Done;
    for (const auto& [number, bucket] : buckets->second) {
      const rpc::DumpBucket* const other = b.bucket(key, number);
      if (other != nullptr && (found = differing_buckets(a, b, *bucket, *other, done))) {
        found->bucket = number;
        break;
      }
    }
  }
  if (found) {
    found->attempt = key;
    found->step = of_a->step;
  }
  return found;
}

}  // namespace

const char* name_of(FlightFinding::Kind kind) {
  constexpr const char* kNames[] = {
      "nothing", "differs", "late_rank", "lost_rank", "slow_node", "slow_link", "missing_node", "failure"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string attempt_text(AttemptKey key, std::optional<std::int64_t> step) {
  return step ? fmt::format("step {} (epoch {}, attempt {})", *step, key.first, key.second)
              : fmt::format("attempt {} of epoch {}", key.second, key.first);
}

std::optional<std::int64_t> step_of(const FlightWorld& world, AttemptKey key) {
  for (const FlightView& view : world.views) {
    if (const rpc::DumpAttempt* attempt = view.attempt(key); attempt != nullptr && attempt->step) {
      return attempt->step;
    }
  }
  return std::nullopt;
}

std::string time_text(double time_s) {
  return time_s < 1 ? fmt::format("{:.1f} ms", time_s * 1000) : fmt::format("{:.1f} s", time_s);
}

std::optional<FlightFinding> first_difference(const FlightWorld& world) {
  for (std::size_t other = 1; other < world.views.size(); ++other) {
    if (auto found = differing_heads(world.views.front(), world.views[other])) {
      return found;
    }
  }
  for (const AttemptKey& key : world.attempts()) {
    const FlightView* known = nullptr;  // the first node that knows the attempt, with which the others are compared
    for (const FlightView& view : world.views) {
      if (view.attempt(key) == nullptr) {
        continue;
      }
      if (known == nullptr) {
        known = &view;
      } else if (auto found = difference_in(*known, view, key)) {
        return found;
      }
    }
  }
  return std::nullopt;
}

FlightFinding analyze_flight(const FlightWorld& world) {
  if (auto found = first_difference(world)) {
    return *std::move(found);
  }
  if (auto found = what_failed(world)) {
    return *std::move(found);
  }
  return what_stands_out(world);
}

}  // namespace gradsync::app
