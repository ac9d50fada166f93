// What stands out in the last steps that were done: a rank that the others waited for, or a link that is slow.

#include "app/blackbox/flight_analysis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace gradsync::app {

namespace {

using Kind = FlightFinding::Kind;
using engine::AttemptState;

constexpr std::size_t kLooked = 50;  ///< attempts, the newest
constexpr double kShare = 0.1;       ///< of the time of these steps, to stand out
constexpr double kMostOf = 0.5;      ///< of all that was waited for one rank alone
constexpr double kTimesSlower = 3;   ///< a link than the one in the middle of the others

double seconds_of(std::int64_t us) { return static_cast<double>(us) * 1e-6; }

/// The newest attempts that are done on all nodes that have left a dump.
std::vector<AttemptKey> done_everywhere(const FlightWorld& world) {
  std::vector<AttemptKey> keys = world.attempts();
  std::erase_if(keys, [&](AttemptKey key) {
    return std::ranges::any_of(world.views, [&](const FlightView& view) {
      const rpc::DumpAttempt* const attempt = view.attempt(key);
      return attempt == nullptr || attempt->state != AttemptState::Done || !attempt->ended_us;
    });
  });
  if (keys.size() > kLooked) {
    keys.erase(keys.begin(), keys.end() - static_cast<std::ptrdiff_t>(kLooked));
  }
  return keys;
}

double time_of(const FlightWorld& world, const std::vector<AttemptKey>& keys) {
  double time_s = 0;
  for (const AttemptKey& key : keys) {
    std::int64_t longest = 0;
    for (const FlightView& view : world.views) {
      const rpc::DumpAttempt& attempt = *view.attempt(key);
      longest = std::max(longest, *attempt.ended_us - attempt.begun_us);
    }
    time_s += seconds_of(longest);
  }
  return time_s;
}

/// Who asked last in an attempt, and how long all others had to wait for this rank alone.
struct Last {
  std::int64_t rank = -1;  ///< −1: nobody can be compared
  std::int64_t alone_us = 0;
};

/// Times of a node count from the decision, which all nodes hear of at nearly the same moment.
Last last_of(const FlightWorld& world, AttemptKey key) {
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min();
  Last last;
  std::int64_t latest = kNever;
  std::int64_t before = kNever;
  for (const FlightView& view : world.views) {
    const rpc::DumpAttempt& attempt = *view.attempt(key);
    if (!attempt.last_ask_us || !attempt.last_rank || (world.views.size() > 1 && !attempt.decided_us)) {
      return {};
    }
    const std::int64_t zero = attempt.decided_us.value_or(0);
    const std::int64_t asked = *attempt.last_ask_us - zero;
    if (asked > latest) {
      before = std::max(before, latest);
      latest = asked;
      last.rank = *attempt.last_rank;
    } else {
      before = std::max(before, asked);
    }
    if (attempt.ask_before_last_us) {
      before = std::max(before, *attempt.ask_before_last_us - zero);
    }
  }
  if (before == kNever) {
    return {};
  }
  last.alone_us = std::max<std::int64_t>(latest - before, 0);
  return last;
}

struct LateRank {
  std::int64_t rank = -1;
  std::size_t times = 0;
  double waited_s = 0;
};

/// The rank that was waited for longest, if that is most of what was waited.
std::optional<LateRank> late_rank(const FlightWorld& world, const std::vector<AttemptKey>& keys, double time_s) {
  std::map<std::int64_t, LateRank> by_rank;
  double all_s = 0;
  for (const AttemptKey& key : keys) {
    const Last last = last_of(world, key);
    LateRank& late = by_rank[last.rank];
    late.rank = last.rank;
    ++late.times;
    late.waited_s += seconds_of(last.alone_us);
    all_s += seconds_of(last.alone_us);
  }
  by_rank.erase(-1);
  if (by_rank.empty()) {
    return std::nullopt;
  }
  const LateRank most =
      std::ranges::max_element(by_rank, {}, [](const auto& each) { return each.second.waited_s; })->second;
  const bool stands_out = most.waited_s >= kShare * time_s && most.waited_s >= kMostOf * all_s && most.waited_s > 0;
  return stands_out ? std::optional(most) : std::nullopt;
}

/// What one way between two nodes took for partial sums. They are sent from when their node launches a bucket, and
/// taken when the other one has: what lies before the later of the two is no time of the link for certain, what lies
/// before the earlier one is none.
struct LinkTime {
  std::int64_t from = 0;
  std::int64_t to = 0;
  double bytes = 0;
  double least_s = 0;
  double most_s = 0;

  [[nodiscard]] double least_per_byte() const { return least_s / bytes; }

  [[nodiscard]] double most_per_byte() const { return most_s / bytes; }
};

const FlightView* view_of_node(const FlightWorld& world, std::int64_t node) {
  const auto found = std::ranges::find(world.views, node, &FlightView::number);
  return found == world.views.end() ? nullptr : &*found;
}

/// When the other end of the link launched the bucket, by the clock of `view`; none where it is not known.
std::optional<std::int64_t> launched_there(
    const FlightWorld& world, const FlightView& view, const rpc::DumpLink& link
) {
  const AttemptKey key{link.epoch, link.attempt};
  const FlightView* const other = view_of_node(world, link.node);
  const rpc::DumpBucket* const bucket = other == nullptr ? nullptr : other->bucket(key, link.bucket);
  if (bucket == nullptr || !bucket->launched_us || !view.attempt(key)->decided_us || !other->attempt(key)->decided_us) {
    return std::nullopt;
  }
  return *bucket->launched_us - *other->attempt(key)->decided_us + *view.attempt(key)->decided_us;
}

std::vector<LinkTime> link_times(const FlightWorld& world, const std::vector<AttemptKey>& keys) {
  std::map<std::pair<std::int64_t, std::int64_t>, LinkTime> by_way;
  for (const FlightView& view : world.views) {
    for (const rpc::DumpLink* link : view.links) {
      const bool known = std::ranges::binary_search(keys, AttemptKey{link->epoch, link->attempt});
      const auto launched = known ? launched_there(world, view, *link) : std::nullopt;
      if (launched && link->partials_us && link->received_bytes > 0) {
        LinkTime& way = by_way[{link->node, view.number()}];
        way.from = link->node;
        way.to = view.number();
        way.bytes += static_cast<double>(link->received_bytes);
        const std::int64_t both = std::max(*launched, link->launched_us);
        way.least_s += seconds_of(std::max<std::int64_t>(*link->partials_us - both, 0));
        way.most_s += seconds_of(std::max<std::int64_t>(*link->partials_us - *launched, 0));
      }
    }
  }
  std::vector<LinkTime> ways;
  for (const auto& [ends, way] : by_way) {
    ways.push_back(way);
  }
  return ways;
}

/// The way that takes longest for a byte, if that is much longer than on the others, and takes a part of the steps.
std::optional<LinkTime> slow_link(const FlightWorld& world, const std::vector<AttemptKey>& keys, double time_s) {
  std::vector<LinkTime> ways = link_times(world, keys);
  if (ways.size() < 2) {
    return std::nullopt;
  }
  const auto at = std::ranges::max_element(ways, {}, &LinkTime::least_per_byte);
  const LinkTime slowest = *at;
  ways.erase(at);
  const auto middle = ways.begin() + static_cast<std::ptrdiff_t>(ways.size() / 2);
  std::ranges::nth_element(ways, middle, {}, &LinkTime::most_per_byte);
  const bool stands_out =
      slowest.least_per_byte() > kTimesSlower * middle->most_per_byte() && slowest.least_s >= kShare * time_s;
  return stands_out ? std::optional(slowest) : std::nullopt;
}

FlightFinding finding_of(const FlightWorld& world, const LateRank& late, std::size_t steps, double time_s) {
  FlightFinding finding;
  finding.kind = Kind::LateRank;
  finding.rank = late.rank;
  finding.seconds = late.waited_s;
  finding.node = world.node_of(late.rank);
  finding.sentence = fmt::format(
      "Rank {}{} is late: it asked last in {} of {} steps, and the others waited {} for it alone, {:.0f} % of their "
      "time.",
      late.rank,
      finding.node ? " on node " + world.node_name(*finding.node) : std::string(),
      late.times,
      steps,
      time_text(late.waited_s),
      100 * late.waited_s / time_s
  );
  return finding;
}

FlightFinding finding_of(const FlightWorld& world, const LinkTime& link, std::size_t steps) {
  constexpr double kMega = 1e6;
  FlightFinding finding;
  finding.kind = Kind::SlowLink;
  finding.node = link.from;
  finding.peer = link.to;
  finding.seconds = link.least_s;
  finding.sentence = fmt::format(
      "The link from node {} to node {} is slow: it carried at most {:.1f} MB/s in {} steps, less than a third of what "
      "others carry.",
      world.node_name(link.from),
      world.node_name(link.to),
      link.bytes / link.least_s / kMega,
      steps
  );
  return finding;
}

}  // namespace

FlightFinding what_stands_out(const FlightWorld& world) {
  const std::vector<AttemptKey> keys = done_everywhere(world);
  const double time_s = time_of(world, keys);
  const auto late = late_rank(world, keys, time_s);
  const auto link = slow_link(world, keys, time_s);
  if (late && (!link || late->waited_s >= link->least_s)) {
    return finding_of(world, *late, keys.size(), time_s);
  }
  if (link) {
    return finding_of(world, *link, keys.size());
  }
  FlightFinding finding;
  finding.sentence =
      keys.empty()
          ? "No step was done that all of these nodes know, so nothing can be said."
          : fmt::format("Nothing stands out in the last {} steps, which took {}.", keys.size(), time_text(time_s));
  return finding;
}

}  // namespace gradsync::app
