// What of a job is recorded, and what of the record is given out.

#include "engine/job/job.hpp"
#include "plan/check/words.hpp"

#include <algorithm>
#include <utility>

namespace gradsync::engine {

void Job::note_finish(std::int64_t rank, const FinishRequest& request) {
  recorder_.on_asked(word(), rank, request.step, context_.now);
  machine_->each_unready(rank, [&](std::uint32_t bucket) {
    if (request.ready_all || std::ranges::find(request.ready, bucket) != request.ready.end()) {
      recorder_.on_ready(word(), bucket, rank, context_.now);
    }
  });
}

/// Those of this node, also those that have left since the plan was made.
void Job::name_ranks(FlightDump& dump) const {
  const bool gathered = !gathered_.node_of_rank.empty() && ranks_.begin() != ranks_.end();
  if (gathered) {
    dump.node_of_rank = gathered_.node_of_rank;
    dump.node_number = dump.node_of_rank[static_cast<std::size_t>(ranks_.begin()->first)];
  }
  if (!gathered && !peers_->alone()) {
    for (const auto& [number, rank] : ranks_) {
      dump.ranks.push_back(number);
    }
    return;
  }
  for (std::int64_t rank = 0; rank < world_size(); ++rank) {
    if (!gathered || dump.node_of_rank[static_cast<std::size_t>(rank)] == dump.node_number) {
      dump.ranks.push_back(rank);
    }
  }
}

FlightDump Job::dump() const {
  FlightDump dump;
  dump.job = identity_.name;
  dump.uid = identity_.uid;
  dump.world_size = world_size();
  dump.restart_count = identity_.restart_count;
  dump.node = peers_->node();
  dump.epoch = epochs_.epoch();
  name_ranks(dump);
  const bool forms = forming();
  dump.waits_for = forms ? lacks() : machine_->waits_for();
  if (machine_) {
    dump.attempt = machine_->attempt();
    dump.plan_digest = machine_->plan().digest;
    dump.plan_buckets = static_cast<std::uint32_t>(machine_->plan().buckets.size());
    dump.data_path = plan::name_of(machine_->plan().options.data_path);
    if (machine_->any_waiting()) {
      dump.missing = machine_->missing_ranks();
    }
  }
  dump.taken = context_.now;
  dump.attempts = recorder_.attempts().copy();
  dump.buckets = recorder_.buckets().copy();
  dump.links = recorder_.links().copy();
  dump.first_bucket = recorder_.buckets().first();
  return dump;
}

void Job::keep_dump(const Error& cause) {
  if (context_.options.keep_dump && !halted() && recorder_.takes_dump(context_.now)) {
    FlightDump taken = dump();
    taken.cause = cause;
    context_.options.keep_dump(std::move(taken));
  }
}

}  // namespace gradsync::engine
