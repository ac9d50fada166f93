"""Faults in the flight recorder: what is recorded, what is dumped, and whom the analysis blames."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["RECORDER"]


def service(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "recorder", f"service/{file}", old, new)


RECORDER = (
    service(
        "record-of-an-attempt-that-is-over",
        "A late report of an attempt that is over begins a record of it.",
        "engine/recorder/flight_recorder.cpp",
        "  if (!attempts_.empty() && attempts_[attempts_.added() - 1].word > word) {\n    return unread_;\n  }",
        "",
    ),
    service(
        "record-of-another-bucket",
        "Where a record was written over, the slot's next words go into that of another bucket.",
        "engine/recorder/flight_recorder.cpp",
        "    if (known.word == word && known.bucket == bucket) [[likely]] {",
        "    if (known.word == word) [[likely]] {",
    ),
    service(
        "ask-before-last-is-the-first",
        "The wait for one rank alone counts from the first rank's ask.",
        "engine/recorder/flight_recorder.cpp",
        "  record.ask_before_last = record.last_ask;",
        "  record.ask_before_last = record.first_ask;",
    ),
    service(
        "ready-twice",
        "A bucket that a rank called ready counts again when the rank asks.",
        "engine/step/step_machine.hpp",
        "      if (!of_rank.ready[bucket] && holds(seat(rank), bucket)) {",
        "      if (holds(seat(rank), bucket)) {",
    ),
    service(
        "failed-buckets-stay-launched",
        "What an attempt that failed left on the lane looks as if it were still reduced.",
        "engine/recorder/flight_recorder.cpp",
        "      buckets_[slot.record].state = BucketState::Failed;",
        "",
    ),
    service(
        "dump-before-the-end",
        "The dump of a failure is taken before the failure is recorded.",
        "engine/job/job_end.cpp",
        "    recorder_.on_failed(attempt_word(failed), error, context_.now);\n    keep_dump(error);",
        "    keep_dump(error);\n    recorder_.on_failed(attempt_word(failed), error, context_.now);",
    ),
    service(
        "dump-of-every-failure",
        "A job that fails all the time fills the folder.",
        "engine/recorder/flight_recorder.cpp",
        "  if (dumped_ && now - *dumped_ < kBetweenDumps) {\n    return false;\n  }",
        "",
    ),
    service(
        "word-without-its-one",
        "The attempt of a word is off by one.",
        "rpc/wire/dump_file.cpp",
        "  return {(word - 1) >> 32, (word - 1) & kAttempt};",
        "  return {word >> 32, word & kAttempt};",
    ),
    service(
        "oldest-dumps-kept",
        "The newest dumps are removed.",
        "app/blackbox/dump_folder.cpp",
        "  std::ranges::sort(names);",
        "  std::ranges::sort(names, std::greater());",
    ),
    service(
        "clocks-compared",
        "The last rank is told by the clocks of the nodes.",
        "app/blackbox/flight_statistics.cpp",
        "    const std::int64_t zero = attempt.decided_us.value_or(0);",
        "    const std::int64_t zero = 0;",
    ),
    service(
        "whole-wait-is-one-ranks",
        "A rank is blamed for what was waited for others of its node as well.",
        "app/blackbox/flight_statistics.cpp",
        "    if (attempt.ask_before_last_us) {",
        "    if (attempt.ask_before_last_us && false) {",
    ),
    service(
        "late-launch-is-a-slow-link",
        "Links count from the launch of their own end, so that a late node's links look slow.",
        "app/blackbox/flight_statistics.cpp",
        "        const std::int64_t both = std::max(*launched, link->launched_us);",
        "        const std::int64_t both = link->launched_us;",
    ),
    service(
        "early-sums-took-no-time",
        "A link whose partial sums came before they were wanted counts as fast, beside which others look slow.",
        "app/blackbox/flight_statistics.cpp",
        "  std::ranges::nth_element(ways, middle, {}, &LinkTime::most_per_byte);\n  const bool stands_out =\n"
        "      slowest.least_per_byte() > kTimesSlower * middle->most_per_byte()",
        "  std::ranges::nth_element(ways, middle, {}, &LinkTime::least_per_byte);\n  const bool stands_out =\n"
        "      slowest.least_per_byte() > kTimesSlower * middle->least_per_byte()",
    ),
    service(
        "results-are-a-slow-link",
        "Results count too, which wait for the partial sums of all nodes.",
        "app/blackbox/flight_statistics.cpp",
        "        way.least_s += seconds_of(std::max<std::int64_t>(*link->partials_us - both, 0));",
        "        way.least_s += seconds_of(std::max<std::int64_t>(link->received_us - both, 0));",
    ),
    service(
        "first-difference-is-the-last",
        "Later attempts are compared first.",
        "app/blackbox/flight_analysis.cpp",
        "  for (const AttemptKey& key : world.attempts()) {\n    const FlightView* known = nullptr;",
        "  std::vector<AttemptKey> back = world.attempts();\n  std::ranges::reverse(back);\n"
        "  for (const AttemptKey& key : back) {\n    const FlightView* known = nullptr;",
    ),
    service(
        "pipeline-ranks-are-late",
        "A rank that has no part of a bucket keeps it from being ready.",
        "app/blackbox/flight_failure.cpp",
        "  return most == 0 ? static_cast<std::uint32_t>(view.head->ranks.size()) : most;",
        "  return std::max(most, static_cast<std::uint32_t>(view.head->ranks.size()));",
    ),
)
