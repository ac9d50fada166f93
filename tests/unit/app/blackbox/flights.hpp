#pragma once
// Dumps of a job that never ran: nodes with clocks of their own, steps with times drawn by chance, and one thing that
// is made wrong.

#include "app/blackbox/flight_analysis.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace gradsync::app {

struct FlightPlan {
  std::int64_t nodes = 3;
  std::int64_t ranks_of_node = 2;
  std::uint32_t buckets = 4;
  std::int64_t steps = 30;
  std::int64_t compute_us = 100'000;  ///< of every rank, and a little more by chance
  std::int64_t noise_us = 4'000;
  std::int64_t carry_us = 2'000;  ///< of a bucket on a link, and a little more by chance
  // Who is at fault; none: nobody.
  std::optional<std::int64_t> late_rank = {};
  std::int64_t late_us = 60'000;
  std::optional<std::pair<std::int64_t, std::int64_t>> slow_way = {};  ///< from node, to node
  std::int64_t times_slower = 8;
};

/// What each node has recorded when all steps are done.
class Flights {
 public:
  Flights(const FlightPlan& plan, std::uint32_t seed) : plan_(plan), draw_(seed) {
    for (std::int64_t node = 0; node < plan.nodes; ++node) {
      NamedDump& dump = dumps.emplace_back();
      dump.file = "node-" + std::to_string(node) + ".jsonl";
      offsets_.push_back(by_chance(std::int64_t{1} << 40));
      rpc::DumpHead& head = dump.dump.head;
      head.job = "llm";
      head.node = "node-" + std::to_string(node);
      head.node_number = node;
      head.world_size = plan.nodes * plan.ranks_of_node;
      head.incarnation = "0123456789abcdef";
      head.release = "0.1.0";
      head.plan = "d1";
      head.data_path = "arena";
      head.buckets = plan.buckets;
      head.epoch = kEpoch;
      head.attempt = static_cast<std::uint64_t>(plan.steps);
      head.waits_for = "the next step";
      for (std::int64_t i = 0; i < plan.ranks_of_node; ++i) {
        head.ranks.push_back(node * plan.ranks_of_node + i);
      }
      for (std::int64_t other = 0; plan.nodes > 1 && other < plan.nodes; ++other) {
        head.nodes.push_back({other, other * plan.ranks_of_node, plan.ranks_of_node});
      }
    }
    for (std::int64_t step = 0; step < plan.steps; ++step) {
      take_step(step);
    }
    stamp();
  }

  static constexpr std::uint64_t kEpoch = 11;

  /// Says when the dumps were taken: now.
  void stamp() {
    for (std::size_t node = 0; node < dumps.size(); ++node) {
      dumps[node].dump.head.taken_us = now_us_ + offsets_[node];
      dumps[node].dump.head.taken_unix_us = kDay + now_us_;
    }
  }

  /// One step more, in which these ranks never ask, or these nodes never end a bucket; it fails after ten minutes
  /// where `fails`, else it still waits when the dumps are taken.
  void stuck_step(
      const std::vector<std::int64_t>& silent,
      std::optional<std::uint32_t> bucket,
      const std::vector<std::int64_t>& stuck_nodes,
      bool fails
  ) {
    constexpr std::int64_t kWaits = 600'000'000;
    const std::int64_t begin = now_us_;
    now_us_ += kWaits;
    for (std::size_t node = 0; node < dumps.size(); ++node) {
      rpc::DumpFile& dump = dumps[node].dump;
      rpc::DumpAttempt attempt = attempt_of(plan_.steps, begin + offsets_[node]);
      std::vector<std::int64_t> missing;
      for (const std::int64_t rank : dump.head.ranks) {
        if (std::ranges::find(silent, rank) != silent.end()) {
          missing.push_back(rank);
          continue;
        }
        attempt.ask_before_last_us = attempt.last_ask_us;
        attempt.last_ask_us = begin + plan_.compute_us + offsets_[node] + by_chance(plan_.noise_us);
        attempt.first_ask_us = attempt.first_ask_us.value_or(*attempt.last_ask_us);
        attempt.last_rank = rank;
        ++attempt.asks;
      }
      attempt.step = attempt.asks > 0 ? std::optional(plan_.steps) : std::nullopt;
      const bool stuck = std::ranges::find(stuck_nodes, static_cast<std::int64_t>(node)) != stuck_nodes.end();
      for (std::uint32_t number = 0; number < plan_.buckets; ++number) {
        rpc::DumpBucket record = bucket_of(attempt, number, begin + offsets_[node]);
        const bool whole = missing.empty() || !bucket || number < *bucket;
        record.ready = static_cast<std::uint32_t>(dump.head.ranks.size() - (whole ? 0 : missing.size()));
        if (record.ready == 0) {
          continue;
        }
        if (whole && (silent.empty() || number < bucket.value_or(plan_.buckets))) {
          record.order = ++attempt.launched;
          record.launched_us = begin + plan_.compute_us + offsets_[node];
          const bool ends = !(stuck && bucket && number >= *bucket);
          record.state = ends    ? engine::BucketState::Reduced
                         : fails ? engine::BucketState::Failed
                                 : engine::BucketState::Launched;
          attempt.reduced += ends ? 1 : 0;
          if (ends) {
            record.done_us = *record.launched_us + 1000;
          }
        }
        dump.buckets.push_back(record);
      }
      if (fails) {
        attempt.state = engine::AttemptState::Failed;
        attempt.ended_us = now_us_ + offsets_[node];
        attempt.error = "step_timeout";
        attempt.missing = missing;
        attempt.missing_count = static_cast<std::uint32_t>(missing.size());
        dump.head.why = rpc::DumpReason::Failure;
        dump.head.cause = rpc::DumpCause{"step_timeout", "waited 600.0 s", missing, ""};
        ++dump.head.attempt;
      } else {
        dump.head.missing = missing;
      }
      dump.attempts.push_back(attempt);
    }
    stamp();
  }

  [[nodiscard]] FlightFinding analyzed() const {
    const Result<FlightWorld> world = make_world(dumps, "");
    return world ? analyze_flight(*world) : FlightFinding{FlightFinding::Kind::Failure, world.error().message};
  }

  std::vector<NamedDump> dumps;

 private:
  static constexpr std::int64_t kDay = 1'790'000'000'000'000;

  std::int64_t by_chance(std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(0, most)(draw_); }

  [[nodiscard]] rpc::DumpAttempt attempt_of(std::int64_t step, std::int64_t begun_us) const {
    rpc::DumpAttempt attempt;
    attempt.epoch = kEpoch;
    attempt.attempt = static_cast<std::uint64_t>(step);
    attempt.step = step;
    attempt.begun_us = begun_us;
    return attempt;
  }

  rpc::DumpBucket bucket_of(const rpc::DumpAttempt& attempt, std::uint32_t number, std::int64_t ready_us) {
    rpc::DumpBucket record;
    record.seq = seq_++;
    record.epoch = attempt.epoch;
    record.attempt = attempt.attempt;
    record.step = attempt.step;
    record.bucket = number;
    record.bytes = 1'000'000 + number;
    record.first_ready_us = record.last_ready_us = ready_us;
    record.last_rank = 0;
    return record;
  }

  void take_step(std::int64_t step) {
    const std::int64_t begin = now_us_;
    std::vector<std::int64_t> asks;
    for (std::int64_t rank = 0; rank < plan_.nodes * plan_.ranks_of_node; ++rank) {
      asks.push_back(
          begin + plan_.compute_us + by_chance(plan_.noise_us) + (rank == plan_.late_rank ? plan_.late_us : 0)
      );
    }
    // Each node launches when its own ranks are ready. A result waits for the partial sums of all nodes.
    std::vector<std::int64_t> launched;
    for (const NamedDump& dump : dumps) {
      const auto first = asks.begin() + dump.dump.head.ranks.front();
      launched.push_back(*std::max_element(first, first + plan_.ranks_of_node));
    }
    std::int64_t end = *std::ranges::max_element(launched);
    std::vector<std::vector<rpc::DumpLink>> links(dumps.size());
    const auto carry = [&](std::size_t from, std::size_t to) {
      const bool slow = plan_.slow_way && *plan_.slow_way == std::pair<std::int64_t, std::int64_t>(from, to);
      return (plan_.carry_us + by_chance(plan_.carry_us / 4)) * (slow ? plan_.times_slower : 1);
    };
    for (std::uint32_t bucket = 0; bucket < plan_.buckets; ++bucket) {
      std::vector<std::vector<std::int64_t>> partial(dumps.size(), std::vector<std::int64_t>(dumps.size()));
      std::vector<std::int64_t> joined = launched;
      for (std::size_t node = 0; node < dumps.size(); ++node) {
        for (std::size_t from = 0; from < dumps.size(); ++from) {
          // A partial sum that comes early is taken when the node has launched the bucket itself.
          partial[node][from] = std::max(launched[node], launched[from] + (from == node ? 0 : carry(from, node)));
          joined[node] = std::max(joined[node], partial[node][from]);
        }
      }
      for (std::size_t node = 0; node < dumps.size(); ++node) {
        for (std::size_t from = 0; from < dumps.size(); ++from) {
          if (from == node) {
            continue;
          }
          rpc::DumpLink link;
          link.epoch = kEpoch;
          link.attempt = static_cast<std::uint64_t>(step);
          link.bucket = bucket;
          link.node = static_cast<std::int64_t>(from);
          link.sent_bytes = link.received_bytes = 1'000'000 + bucket;
          const std::int64_t received = joined[from] + carry(from, node);
          link.launched_us = launched[node] + offsets_[node];
          link.sent_us = joined[node] + plan_.carry_us + offsets_[node];
          link.received_us = received + offsets_[node];
          link.partials_us = partial[node][from] + offsets_[node];
          end = std::max(end, received);
          links[node].push_back(link);
        }
      }
    }
    const std::int64_t decided = end + 500;
    now_us_ = decided + 2'000;
    for (std::size_t node = 0; node < dumps.size(); ++node) {
      record_step(step, node, begin, asks, launched[node], end, decided, links[node]);
    }
  }

  void record_step(
      std::int64_t step,
      std::size_t node,
      std::int64_t begin,
      const std::vector<std::int64_t>& asks,
      std::int64_t launched,
      std::int64_t end,
      std::int64_t decided,
      const std::vector<rpc::DumpLink>& links
  ) {
    rpc::DumpFile& dump = dumps[node].dump;
    const std::int64_t offset = offsets_[node];
    rpc::DumpAttempt attempt = attempt_of(step, begin + offset);
    std::vector<std::pair<std::int64_t, std::int64_t>> in_order;
    for (const std::int64_t rank : dump.head.ranks) {
      in_order.emplace_back(asks[static_cast<std::size_t>(rank)] + offset, rank);
    }
    std::ranges::sort(in_order);
    attempt.first_ask_us = in_order.front().first;
    attempt.last_ask_us = in_order.back().first;
    attempt.last_rank = in_order.back().second;
    if (in_order.size() > 1) {
      attempt.ask_before_last_us = (in_order.end() - 2)->first;
    }
    attempt.asks = static_cast<std::uint32_t>(in_order.size());
    attempt.launched = attempt.reduced = plan_.buckets;
    attempt.measured_us = end + offset;
    if (plan_.nodes > 1) {
      attempt.decided_us = decided + offset + by_chance(200);  // the decision takes its time to the other nodes
    }
    attempt.voted_us = decided + offset + 300;
    attempt.ended_us = decided + offset + 1'000;
    attempt.state = engine::AttemptState::Done;
    for (std::uint32_t number = 0; number < plan_.buckets; ++number) {
      rpc::DumpBucket record = bucket_of(attempt, number, begin + offset + 1'000);
      record.ready = attempt.asks;
      record.order = number + 1;
      record.launched_us = launched + offset;
      record.done_us = end + offset;
      record.state = engine::BucketState::Reduced;
      dump.buckets.push_back(record);
    }
    dump.attempts.push_back(attempt);
    dump.links.insert(dump.links.end(), links.begin(), links.end());
  }

  FlightPlan plan_;
  std::mt19937 draw_;
  std::vector<std::int64_t> offsets_;  ///< of the nodes' clocks
  std::int64_t now_us_ = 1'000'000;
  std::uint64_t seq_ = 0;
};

}  // namespace gradsync::app
