#include "app/page/recent_steps.hpp"

#include "rpc/wire/dump_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

namespace gradsync::app {

namespace {

using engine::AttemptRecord;
using engine::AttemptState;
using engine::StepReport;

std::optional<std::string> without_escapes(std::string_view text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      plain += text[at] == '+' ? ' ' : text[at];
      continue;
    }
    unsigned char byte = 0;
    const std::string_view digits = text.substr(at + 1, 2);
    const char* const end = digits.data() + digits.size();
    if (digits.size() != 2 || std::from_chars(digits.data(), end, byte, 16).ptr != end) {
      return std::nullopt;
    }
    plain += static_cast<char>(byte);
    at += 2;
  }
  return plain;
}

rpc::StepPoint point_of(const StepReport& report) {
  return {
      report.step,
      report.epoch,
      report.attempt,
      report.norm,
      report.threshold,
      report.coefficient,
      report.clipped,
      report.skipped,
      report.reason,
      report.timings};
}

template <typename Finding>
std::vector<Finding> first_of(const std::vector<Finding>& all, std::int64_t& left_out) {
  const std::size_t shown = std::min(all.size(), kShownTensors);
  left_out += static_cast<std::int64_t>(all.size() - shown);
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(shown)};
}

std::optional<rpc::StepFindings> findings_of(const StepReport& report) {
  if (report.nonfinite.empty() && report.divergence.empty() && report.missing.empty()) {
    return std::nullopt;
  }
  rpc::StepFindings findings;
  findings.step = report.step;
  findings.nonfinite = first_of(report.nonfinite, findings.left_out);
  findings.divergence = first_of(report.divergence, findings.left_out);
  findings.missing = first_of(report.missing, findings.left_out);
  return findings;
}

void count_lag(const std::vector<AttemptRecord>& attempts, rpc::StepsAnswer& answer) {
  std::map<std::int64_t, rpc::RankLag> by_rank;
  for (auto one = attempts.rbegin(); one != attempts.rend(); ++one) {
    const bool compared = one->last_rank >= 0 && one->ask_before_last != TimePoint{};
    if (one->state != AttemptState::Done || !compared) {
      continue;
    }
    rpc::RankLag& lag = by_rank[one->last_rank];
    lag.rank = one->last_rank;
    ++lag.times_last;
    lag.waited_s += seconds(one->last_ask - one->ask_before_last);
    if (++answer.lag_attempts == static_cast<std::int64_t>(kLagAttempts)) {
      break;
    }
  }
  for (auto& [rank, lag] : by_rank) {
    answer.lag.push_back(lag);
  }
}

/// Keeps the last attempts, and before these the last that failed.
void keep_newest_attempts(std::vector<AttemptRecord>& attempts) {
  std::vector<AttemptRecord> kept;
  std::size_t newest = 0;
  std::size_t failures = 0;
  for (auto one = attempts.rbegin(); one != attempts.rend() && failures < kShownFailures; ++one) {
    failures += one->state == AttemptState::Failed ? 1 : 0;
    if (newest++ < kTimelineAttempts || one->state == AttemptState::Failed) {
      kept.push_back(*one);
    }
  }
  std::ranges::reverse(kept);
  attempts = std::move(kept);
}

void keep_newest_buckets(engine::FlightDump& dump, std::uint64_t first_word) {
  std::vector<engine::BucketRecord>& buckets = dump.buckets;
  std::size_t dropped = buckets.size() - std::min(buckets.size(), kTimelineBuckets);
  while (dropped < buckets.size() && buckets[dropped].word < first_word) {
    ++dropped;
  }
  buckets.erase(buckets.begin(), buckets.begin() + static_cast<std::ptrdiff_t>(dropped));
  dump.first_bucket += dropped;
}

}  // namespace

Result<StepsQuery> parse_steps_query(std::string_view query) {
  StepsQuery result;
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(part.size() + 1, query.size()));
    const std::size_t sign = std::min(part.find('='), part.size());
    const std::string_view name = part.substr(0, sign);
    const std::optional<std::string> value = without_escapes(part.substr(std::min(sign + 1, part.size())));
    if (name == "job" && value) {
      result.job = *value;
    } else if (name == "uid" && value) {
      const char* const end = value->data() + value->size();
      std::uint32_t uid = 0;
      const auto read = std::from_chars(value->data(), end, uid);
      if (read.ec != std::errc{} || read.ptr != end) {
        return invalid_params("uid", fmt::format("'{}' is not a uid", *value), "give that of /status");
      }
      result.uid = uid;
    } else {
      return invalid_params(
          std::string(name), fmt::format("'{}' is not understood", part), "ask for /steps?job=NAME&uid=UID"
      );
    }
  }
  if (result.job.empty()) {
    return invalid_params("job", "no job is named", "ask for /steps?job=NAME&uid=UID");
  }
  return result;
}

rpc::StepsAnswer recent_steps(const std::vector<std::shared_ptr<const StepReport>>& reports, engine::FlightDump dump) {
  rpc::StepsAnswer answer;
  answer.job = dump.job;
  answer.uid = dump.uid;
  for (const auto& report : reports) {
    answer.steps.push_back(point_of(*report));
    if (auto findings = findings_of(*report)) {
      answer.findings.push_back(std::move(*findings));
    }
  }
  if (answer.findings.size() > kShownFindings) {
    answer.findings.erase(answer.findings.begin(), answer.findings.end() - static_cast<std::ptrdiff_t>(kShownFindings));
  }
  count_lag(dump.attempts, answer);
  if (!dump.attempts.empty()) {
    const std::size_t timeline = std::min(dump.attempts.size(), kTimelineAttempts);
    keep_newest_buckets(dump, dump.attempts[dump.attempts.size() - timeline].word);
  }
  keep_newest_attempts(dump.attempts);
  dump.links.clear();
  rpc::DumpFile file = rpc::dump_file(dump, {});
  answer.taken_us = file.head.taken_us;
  answer.attempts = std::move(file.attempts);
  answer.buckets = std::move(file.buckets);
  return answer;
}

}  // namespace gradsync::app
