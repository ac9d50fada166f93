// What kept an attempt that failed, or that waits.

#include "app/blackbox/flight_analysis.hpp"
#include "base/text/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>
#include <utility>

namespace gradsync::app {

namespace {

using Kind = FlightFinding::Kind;
using engine::AttemptState;
using engine::BucketState;

/// A step that waits is looked at when it has taken so many times what steps take, and this long.
constexpr double kOverdue = 3;
constexpr double kShortest_s = 1;

double since(std::int64_t from_us, std::int64_t to_us) { return static_cast<double>(to_us - from_us) * 1e-6; }

/// How long a step of this node takes that is done; 0 where none is.
double usual_time(const FlightView& view) {
  std::vector<double> times;
  for (const auto& [key, attempt] : view.attempts) {
    if (attempt->state == AttemptState::Done && attempt->ended_us) {
      times.push_back(since(attempt->begun_us, *attempt->ended_us));
    }
  }
  if (times.empty()) {
    return 0;
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return *middle;
}

/// How long ranks have waited in the attempt, on the node where that was longest.
double waited_in(const FlightWorld& world, AttemptKey key) {
  double longest = 0;
  for (const FlightView& view : world.views) {
    const rpc::DumpAttempt* const attempt = view.attempt(key);
    if (attempt != nullptr && attempt->first_ask_us) {
      longest = std::max(longest, since(*attempt->first_ask_us, attempt->ended_us.value_or(view.head->taken_us)));
    }
  }
  return longest;
}

bool is_overdue(const FlightView& view, const rpc::DumpAttempt& attempt) {
  return attempt.state == AttemptState::Open && attempt.first_ask_us &&
         since(*attempt.first_ask_us, view.head->taken_us) > std::max(kShortest_s, kOverdue * usual_time(view));
}

/// The attempt to look at: the last that waits for too long, or that failed where a failure asked for a dump.
std::optional<AttemptKey> attempt_in_question(const FlightWorld& world) {
  const std::vector<AttemptKey> keys = world.attempts();
  const bool asked_by_failure =
      std::ranges::any_of(world.views, [](const FlightView& view) { return view.head->cause.has_value(); });
  for (std::size_t back = keys.size(); back-- > 0;) {
    for (const FlightView& view : world.views) {
      const rpc::DumpAttempt* const attempt = view.attempt(keys[back]);
      if (attempt == nullptr) {
        continue;
      }
      const bool failed = attempt->state == AttemptState::Failed && (asked_by_failure || back + 1 == keys.size());
      if (failed || is_overdue(view, *attempt)) {
        return keys[back];
      }
    }
  }
  return std::nullopt;
}

const rpc::DumpCause* newest_cause(const FlightWorld& world) {
  const rpc::DumpHead* newest = nullptr;
  for (const FlightView& view : world.views) {
    if (view.head->cause && (newest == nullptr || newest->taken_unix_us < view.head->taken_unix_us)) {
      newest = view.head;
    }
  }
  return newest == nullptr ? nullptr : &*newest->cause;
}

/// One attempt, and what all nodes say of it.
struct Question {
  const FlightWorld& world;
  AttemptKey key;
  std::string what;   ///< "step 12 (…)"
  std::string kind;   ///< of the error; empty: the attempt waits
  std::string words;  ///< of the error
  double waited_s;
};

Question question_of(const FlightWorld& world, AttemptKey key) {
  Question question{world, key, attempt_text(key, step_of(world, key)), "", "", waited_in(world, key)};
  for (const FlightView& view : world.views) {
    const rpc::DumpAttempt* const attempt = view.attempt(key);
    if (attempt != nullptr && attempt->error && question.kind.empty()) {
      question.kind = *attempt->error;
    }
  }
  if (const rpc::DumpCause* cause = newest_cause(world); cause != nullptr && cause->kind == question.kind) {
    question.words = cause->message;
  }
  return question;
}

FlightFinding about(const Question& question, Kind kind, std::string sentence) {
  FlightFinding finding;
  finding.kind = kind;
  finding.attempt = question.key;
  finding.step = step_of(question.world, question.key);
  finding.seconds = question.waited_s;
  finding.sentence = std::move(sentence);
  return finding;
}

/// Ranks that the attempt waited for, as far as nodes know them.
std::vector<std::int64_t> late_ranks(const Question& question) {
  std::set<std::int64_t> late;
  for (const FlightView& view : question.world.views) {
    const rpc::DumpAttempt* const attempt = view.attempt(question.key);
    if (attempt == nullptr) {
      continue;
    }
    late.insert(attempt->missing.begin(), attempt->missing.end());
    if (attempt->state == AttemptState::Open && view.head->attempt == attempt->attempt) {
      late.insert(view.head->missing.begin(), view.head->missing.end());
    }
  }
  return {late.begin(), late.end()};
}

/// How many ranks of the node call the bucket ready in a step that works.
std::uint32_t ranks_of_bucket(const FlightView& view, std::uint32_t bucket) {
  std::uint32_t most = 0;
  for (const auto& [key, attempt] : view.attempts) {
    const rpc::DumpBucket* const record = attempt->state == AttemptState::Done ? view.bucket(key, bucket) : nullptr;
    most = record == nullptr ? most : std::max(most, record->ready);
  }
  return most == 0 ? static_cast<std::uint32_t>(view.head->ranks.size()) : most;
}

std::optional<std::uint32_t> first_unready(const FlightView& view, AttemptKey key) {
  for (std::uint32_t bucket = 0; bucket < view.head->buckets; ++bucket) {
    const rpc::DumpBucket* const record = view.bucket(key, bucket);
    if (record == nullptr || record->ready < ranks_of_bucket(view, bucket)) {
      return bucket;
    }
  }
  return std::nullopt;
}

FlightFinding late_rank(const Question& question, const std::vector<std::int64_t>& late) {
  const bool several = late.size() > 1;
  const FlightView* const view = question.world.view_of(late.front());
  const auto node = question.world.node_of(late.front());
  const auto bucket = view == nullptr ? std::nullopt : first_unready(*view, question.key);
  std::string ranks = enumerate_ranks(late, static_cast<std::int64_t>(late.size()));
  ranks.front() = 'R';
  FlightFinding finding = about(
      question,
      Kind::LateRank,
      fmt::format(
          "{}{} held up {}: {} had not asked for it {} after the first rank had{}.",
          ranks,
          several || !node ? std::string() : " on node " + question.world.node_name(*node),
          question.what,
          several ? "they" : "it",
          time_text(question.waited_s),
          !bucket ? std::string() : fmt::format(", and bucket {} is the first that was not ready there", *bucket)
      )
  );
  finding.rank = late.front();
  finding.bucket = bucket;
  finding.node = node;
  return finding;
}

/// The first bucket that the node's lane was given and had not reduced.
std::optional<std::uint32_t> first_unreduced(const FlightView& view, AttemptKey key) {
  const auto buckets = view.buckets.find(key);
  if (buckets == view.buckets.end()) {
    return std::nullopt;
  }
  for (const auto& [number, bucket] : buckets->second) {
    if (bucket->state == BucketState::Launched || bucket->state == BucketState::Failed) {
      return number;
    }
  }
  return std::nullopt;
}

/// A bucket that some nodes have not reduced: a node alone, or a link where it is two.
std::optional<FlightFinding> unreduced(const Question& question) {
  std::optional<std::uint32_t> first;
  std::vector<const FlightView*> stuck;
  for (const FlightView& view : question.world.views) {
    const auto bucket = first_unreduced(view, question.key);
    if (bucket && (!first || *bucket < *first)) {
      first = bucket;
      stuck.clear();
    }
    if (bucket && bucket == first) {
      stuck.push_back(&view);
    }
  }
  if (!first) {
    return std::nullopt;
  }
  if (stuck.size() == 2) {
    FlightFinding finding = about(
        question,
        Kind::SlowLink,
        fmt::format(
            "The link between nodes {} and {} held up {}: bucket {} is launched and not reduced on these two.",
            stuck[0]->name(),
            stuck[1]->name(),
            question.what,
            *first
        )
    );
    finding.node = stuck[0]->number();
    finding.peer = stuck[1]->number();
    finding.bucket = first;
    return finding;
  }
  std::vector<std::string> names;
  for (const FlightView* view : stuck) {
    names.push_back(view->name());
  }
  FlightFinding finding = about(
      question,
      Kind::SlowNode,
      fmt::format(
          "Node{} {} held up {}: bucket {} is launched and not reduced there.",
          names.size() > 1 ? "s" : "",
          enumerate_names(names),
          question.what,
          *first
      )
  );
  finding.node = stuck.front()->number();
  finding.bucket = first;
  return finding;
}

/// Nodes that have said nothing, while those that have are waiting for them.
std::optional<FlightFinding> missing_node(const Question& question) {
  const std::vector<std::int64_t> absent = question.world.absent();
  if (absent.empty()) {
    return std::nullopt;
  }
  std::vector<std::string> names;
  for (const std::int64_t node : absent) {
    names.push_back(question.world.node_name(node));
  }
  FlightFinding finding = about(
      question,
      Kind::MissingNode,
      fmt::format(
          "Node{} {} held up {}: the others had nothing left to do, and there is no dump of {}.",
          names.size() > 1 ? "s" : "",
          enumerate_names(names),
          question.what,
          names.size() > 1 ? "these" : "it"
      )
  );
  finding.node = absent.front();
  return finding;
}

/// All have measured: the coordinator decides, and hears the votes.
std::optional<FlightFinding> undecided(const Question& question) {
  for (const FlightView& view : question.world.views) {
    const rpc::DumpAttempt* const attempt = view.attempt(question.key);
    if (attempt == nullptr || view.head->nodes.empty() || (attempt->decided_us && !attempt->voted_us)) {
      continue;
    }
    if (!attempt->decided_us && attempt->first_ask_us && attempt->measured_us) {
      FlightFinding finding = about(
          question,
          Kind::SlowLink,
          fmt::format(
              "Node {} had measured {}, and heard no decision of node {}.",
              view.name(),
              question.what,
              question.world.node_name(0)
          )
      );
      finding.node = view.number();
      finding.peer = 0;
      return finding;
    }
  }
  return std::nullopt;
}

/// Whose end or silence the error is about.
std::optional<FlightFinding> lost(const Question& question) {
  const std::vector<std::int64_t> ranks = late_ranks(question);
  const std::string words = question.words.empty() ? "" : ": " + question.words;
  if (question.kind == "rank_lost" && !ranks.empty()) {
    FlightFinding finding =
        about(question, Kind::LostRank, fmt::format("Rank {} was lost in {}{}.", ranks.front(), question.what, words));
    finding.rank = ranks.front();
    finding.node = question.world.node_of(ranks.front());
    return finding;
  }
  if (question.kind == "node_lost") {
    FlightFinding finding =
        about(question, Kind::MissingNode, fmt::format("A node was lost in {}{}.", question.what, words));
    finding.node = ranks.empty() ? std::nullopt : question.world.node_of(ranks.front());
    return finding;
  }
  return std::nullopt;
}

FlightFinding failure(const Question& question) {
  const std::vector<std::int64_t> ranks = late_ranks(question);
  FlightFinding finding = about(
      question,
      Kind::Failure,
      question.kind.empty() ? fmt::format("{} waits for {}.", question.what, question.world.newest().waits_for)
                            : fmt::format(
                                  "{} failed with {}{}.",
                                  question.what,
                                  question.kind,
                                  question.words.empty() ? "" : ": " + question.words
                              )
  );
  finding.sentence.front() = static_cast<char>(std::toupper(finding.sentence.front()));
  if (!ranks.empty()) {
    finding.rank = ranks.front();
  }
  return finding;
}

/// A dump was taken for something that failed no attempt: a rank or a node was lost between two steps.
std::optional<FlightFinding> lost_between_steps(const FlightWorld& world) {
  const rpc::DumpCause* const cause = newest_cause(world);
  if (cause == nullptr) {
    return std::nullopt;
  }
  FlightFinding finding;
  finding.kind = cause->kind == "node_lost"                            ? Kind::MissingNode
                 : cause->kind == "rank_lost" && !cause->ranks.empty() ? Kind::LostRank
                                                                       : Kind::Failure;
  finding.sentence = fmt::format("The job failed between two steps with {}: {}.", cause->kind, cause->message);
  if (!cause->ranks.empty()) {
    finding.rank = cause->ranks.front();
    finding.node = world.node_of(cause->ranks.front());
  }
  return finding;
}

}  // namespace

std::optional<FlightFinding> what_failed(const FlightWorld& world) {
  const std::optional<AttemptKey> key = attempt_in_question(world);
  if (!key) {
    return lost_between_steps(world);
  }
  const Question question = question_of(world, *key);
  if (auto found = lost(question)) {
    return found;
  }
  if (!question.kind.empty() && question.kind != "step_timeout") {
    return failure(question);
  }
  if (const std::vector<std::int64_t> late = late_ranks(question); !late.empty()) {
    return late_rank(question, late);
  }
  for (const auto part : {missing_node, unreduced, undecided}) {
    if (auto found = part(question)) {
      return found;
    }
  }
  return failure(question);
}

}  // namespace gradsync::app
