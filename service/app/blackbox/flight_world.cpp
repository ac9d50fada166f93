#include "app/blackbox/flight_world.hpp"

#include "base/text/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace gradsync::app {

namespace {

/// The ranks of a node as its spans say: "ranks 4 to 7", or those that do not follow each other.
std::string ranks_of(const rpc::DumpHead& head, std::int64_t node) {
  std::vector<std::int64_t> first;
  std::int64_t count = 0;
  for (const rpc::DumpSpan& span : head.nodes) {
    for (std::int64_t i = 0; span.node == node && i < span.count; ++i) {
      if (++count <= static_cast<std::int64_t>(kNamedRanks)) {
        first.push_back(span.first + i);
      }
    }
  }
  return enumerate_ranks(first, count);
}

Result<std::string> one_job(const std::vector<NamedDump>& dumps, const std::string& wanted) {
  std::set<std::string> jobs;
  for (const NamedDump& each : dumps) {
    jobs.insert(each.dump.head.job);
  }
  if (wanted.empty() && jobs.size() == 1) {
    return *jobs.begin();
  }
  if (!wanted.empty() && jobs.contains(wanted)) {
    return wanted;
  }
  const std::vector<std::string> names(jobs.begin(), jobs.end());
  return invalid_params(
      "job",
      wanted.empty() ? fmt::format("the files are of {} jobs: {}", names.size(), enumerate_names(names))
                     : fmt::format("no file is of job '{}', they are of {}", wanted, enumerate_names(names)),
      "name one of them with --job"
  );
}

/// Later restarts count, and of one node its newest dump.
bool is_newer(const rpc::DumpHead& a, const rpc::DumpHead& b) {
  return std::tuple(a.restart_count, a.taken_unix_us) > std::tuple(b.restart_count, b.taken_unix_us);
}

}  // namespace

FlightView::FlightView(const rpc::DumpFile& dump) : head(&dump.head) {
  for (const rpc::DumpAttempt& each : dump.attempts) {
    attempts[{each.epoch, each.attempt}] = &each;
  }
  for (const rpc::DumpBucket& each : dump.buckets) {
    buckets[{each.epoch, each.attempt}][each.bucket] = &each;
  }
  for (const rpc::DumpLink& each : dump.links) {
    links.push_back(&each);
  }
}

const rpc::DumpAttempt* FlightView::attempt(AttemptKey key) const {
  const auto found = attempts.find(key);
  return found == attempts.end() ? nullptr : found->second;
}

const rpc::DumpBucket* FlightView::bucket(AttemptKey key, std::uint32_t bucket) const {
  const auto of_attempt = buckets.find(key);
  if (of_attempt == buckets.end()) {
    return nullptr;
  }
  const auto found = of_attempt->second.find(bucket);
  return found == of_attempt->second.end() ? nullptr : found->second;
}

std::vector<AttemptKey> FlightWorld::attempts() const {
  std::set<AttemptKey> keys;
  for (const FlightView& view : views) {
    for (const auto& [key, attempt] : view.attempts) {
      keys.insert(key);
    }
  }
  return {keys.begin(), keys.end()};
}

std::string FlightWorld::node_name(std::int64_t number) const {
  for (const FlightView& view : views) {
    if (view.number() == number) {
      return view.name();
    }
  }
  return fmt::format("{} ({})", number, ranks_of(newest(), number));
}

const FlightView* FlightWorld::view_of(std::int64_t rank) const {
  for (const FlightView& view : views) {
    if (std::ranges::binary_search(view.head->ranks, rank)) {
      return &view;
    }
  }
  return nullptr;
}

std::optional<std::int64_t> FlightWorld::node_of(std::int64_t rank) const {
  for (const rpc::DumpSpan& span : newest().nodes) {
    if (rank >= span.first && rank < span.first + span.count) {
      return span.node;
    }
  }
  const FlightView* const view = view_of(rank);
  return view == nullptr ? std::nullopt : std::optional(view->number());
}

std::vector<std::int64_t> FlightWorld::absent() const {
  std::set<std::int64_t> numbers;
  for (const rpc::DumpSpan& span : newest().nodes) {
    numbers.insert(span.node);
  }
  for (const FlightView& view : views) {
    numbers.erase(view.number());
  }
  return {numbers.begin(), numbers.end()};
}

const rpc::DumpHead& FlightWorld::newest() const {
  return *std::ranges::max_element(views, {}, [](const FlightView& view) { return view.head->taken_unix_us; })->head;
}

void keep_last_steps(rpc::DumpFile& dump, std::size_t count) {
  std::set<std::int64_t> steps;
  AttemptKey oldest{};
  for (auto attempt = dump.attempts.rbegin(); attempt != dump.attempts.rend(); ++attempt) {
    if (attempt->step) {
      steps.insert(*attempt->step);
    }
    if (steps.size() > count) {
      break;
    }
    oldest = {attempt->epoch, attempt->attempt};
  }
  const auto is_older = [&](const auto& record) { return AttemptKey{record.epoch, record.attempt} < oldest; };
  std::erase_if(dump.attempts, is_older);
  std::erase_if(dump.buckets, is_older);
  std::erase_if(dump.links, is_older);
}

Result<FlightWorld> make_world(const std::vector<NamedDump>& dumps, const std::string& wanted) {
  const Result<std::string> job = one_job(dumps, wanted);
  if (!job) {
    return job.error();
  }
  std::int64_t restart = 0;
  for (const NamedDump& each : dumps) {
    restart = each.dump.head.job == *job ? std::max(restart, each.dump.head.restart_count) : restart;
  }
  FlightWorld world{*job, {}, {}};
  std::map<std::string, const NamedDump*> by_node;
  for (const NamedDump& each : dumps) {
    if (each.dump.head.job != *job || each.dump.head.restart_count != restart) {
      world.left_out.push_back(each.file);
      continue;
    }
    const auto [at, first] = by_node.try_emplace(each.dump.head.node, &each);
    if (!first) {
      const bool newer = is_newer(each.dump.head, at->second->dump.head);
      world.left_out.push_back(newer ? at->second->file : each.file);
      at->second = newer ? &each : at->second;
    }
  }
  std::map<std::int64_t, const NamedDump*> by_number;
  for (const auto& [node, dump] : by_node) {
    const auto [at, first] = by_number.try_emplace(dump->dump.head.node_number, dump);
    if (!first) {
      return invalid_params(
          dump->file,
          fmt::format("nodes '{}' and '{}' are both node {}", at->second->dump.head.node, node, at->first),
          "give dumps of one run"
      );
    }
  }
  for (const auto& [number, dump] : by_number) {
    world.views.emplace_back(dump->dump);
  }
  return world;
}

}  // namespace gradsync::app
