#include "rpc/wire/dump_file.hpp"

#include "base/text/text.hpp"
#include "rpc/json/json_tape.hpp"
#include "rpc/json/plain_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace gradsync::rpc {

namespace {

constexpr std::size_t kDumpDepth = 8;

// ---- writing

std::int64_t micros(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

std::optional<std::int64_t> moment(TimePoint time) {
  return time == TimePoint{} ? std::nullopt : std::optional(micros(time));
}

std::optional<std::int64_t> rank_of(std::int32_t rank) {
  return rank < 0 ? std::nullopt : std::optional<std::int64_t>(rank);
}

std::pair<std::uint64_t, std::uint64_t> key_of(std::uint64_t word) {
  constexpr std::uint64_t kAttempt = 0xFFFF'FFFF;
  return {(word - 1) >> 32, (word - 1) & kAttempt};
}

/// One line that a terminal can take, not longer than a reader allows.
std::string plain(std::string_view text) {
  std::string line(text.substr(0, static_cast<std::size_t>(kDumpText.most)));
  while (!line.empty() && ends_within_character(line)) {
    line.pop_back();
  }
  while (const auto control = find_control_character(line)) {
    line.replace(control->at, control->length, " ");
  }
  return line;
}

std::vector<DumpSpan> spans_of(const std::vector<engine::NodeNumber>& node_of_rank) {
  std::vector<DumpSpan> spans;
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    if (spans.empty() || spans.back().node != node_of_rank[rank]) {
      spans.push_back({node_of_rank[rank], static_cast<std::int64_t>(rank), 0});
    }
    ++spans.back().count;
  }
  return spans;
}

DumpHead head_of(const engine::FlightDump& dump, const DumpOrigin& origin) {
  DumpHead head;
  head.why = origin.why;
  if (dump.cause) {
    const Error& cause = *dump.cause;
    head.cause = DumpCause{kind_of(cause.code), plain(cause.message), cause.ranks, plain(cause.node)};
    if (cause.ranks.empty() && cause.rank) {
      head.cause->ranks.push_back(*cause.rank);
    }
  }
  head.job = dump.job;
  head.uid = dump.uid;
  head.world_size = dump.world_size;
  head.restart_count = dump.restart_count;
  head.node = dump.node.empty() ? origin.node : dump.node;
  head.node_number = dump.node_number;
  head.incarnation = origin.incarnation;
  head.release = origin.release;
  head.ranks = dump.ranks;
  head.nodes = spans_of(dump.node_of_rank);
  head.plan = dump.plan_digest;
  head.data_path = dump.data_path;
  head.buckets = dump.plan_buckets;
  head.epoch = dump.epoch;
  head.attempt = dump.attempt;
  head.waits_for = plain(dump.waits_for);
  head.missing = dump.missing;
  head.taken_us = micros(dump.taken);
  head.taken_unix_us = origin.taken_unix_us;
  return head;
}

DumpAttempt line_of(const engine::AttemptRecord& record) {
  DumpAttempt line;
  std::tie(line.epoch, line.attempt) = key_of(record.word);
  line.step = record.step < 0 ? std::nullopt : std::optional(record.step);
  line.state = record.state;
  line.begun_us = micros(record.begun);
  line.first_ask_us = moment(record.first_ask);
  line.ask_before_last_us = moment(record.ask_before_last);
  line.last_ask_us = moment(record.last_ask);
  line.last_rank = rank_of(record.last_rank);
  line.asks = record.asks;
  line.launched = record.launched;
  line.reduced = record.reduced;
  line.measured_us = moment(record.measured);
  line.decided_us = moment(record.decided);
  line.voted_us = moment(record.voted);
  line.ended_us = moment(record.ended);
  if (record.state == engine::AttemptState::Failed) {
    line.error = kind_of(record.error);
  }
  const std::size_t named = std::min<std::size_t>(record.missing_count, record.missing.size());
  line.missing.assign(record.missing.begin(), record.missing.begin() + static_cast<std::ptrdiff_t>(named));
  line.missing_count = record.missing_count;
  return line;
}

DumpBucket line_of(const engine::BucketRecord& record, std::uint64_t seq, std::optional<std::int64_t> step) {
  DumpBucket line;
  line.seq = seq;
  std::tie(line.epoch, line.attempt) = key_of(record.word);
  line.step = step;
  line.bucket = record.bucket;
  line.bytes = record.bytes;
  line.state = record.state;
  line.ready = record.ready;
  line.last_rank = rank_of(record.last_rank);
  line.first_ready_us = moment(record.first_ready);
  line.last_ready_us = moment(record.last_ready);
  line.order = record.order == 0 ? std::nullopt : std::optional(record.order);
  line.launched_us = moment(record.launched);
  line.done_us = moment(record.done);
  return line;
}

DumpLink line_of(const engine::LinkRecord& record) {
  DumpLink line;
  std::tie(line.epoch, line.attempt) = key_of(record.word);
  line.bucket = record.bucket;
  line.node = record.node;
  line.sent_bytes = record.sent_bytes;
  line.received_bytes = record.received_bytes;
  line.launched_us = micros(record.launched);
  line.sent_us = micros(record.sent);
  line.received_us = micros(record.received);
  line.partials_us = moment(record.partials);
  return line;
}

// ---- reading

Error in_line(Error error, std::size_t line) {
  error.path = error.path.empty() ? fmt::format("line {}", line) : fmt::format("line {}: {}", line, error.path);
  return error;
}

Error wrong(std::size_t line, std::string path, std::string message) {
  return in_line(invalid_params(std::move(path), std::move(message), "take the file as `gradsyncd` wrote it"), line);
}

Result<void> check_ranks(
    const char* path, const std::vector<std::int64_t>& ranks, std::int64_t world_size, std::size_t line
) {
  for (const std::int64_t rank : ranks) {
    if (rank < 0 || rank >= world_size) {
      return wrong(line, path, fmt::format("{} has rank {}, world_size is {}", path, rank, world_size));
    }
  }
  return {};
}

Result<void> check_spans(const DumpHead& head, std::size_t line) {
  std::int64_t next = 0;
  for (const DumpSpan& span : head.nodes) {
    if (span.first != next || span.count > head.world_size - next) {
      return wrong(
          line,
          "nodes",
          fmt::format(
              "nodes has ranks {} to {} where rank {} of {} is next",
              span.first,
              span.first + span.count - 1,
              next,
              head.world_size
          )
      );
    }
    next += span.count;
  }
  if (next != 0 && next != head.world_size) {
    return wrong(line, "nodes", fmt::format("nodes has {} ranks, world_size is {}", next, head.world_size));
  }
  for (const DumpSpan& span : head.nodes) {
    if (std::ranges::binary_search(head.ranks, span.first) != (span.node == head.node_number)) {
      return wrong(
          line, "nodes", fmt::format("rank {} is on node {} in nodes, and ranks says otherwise", span.first, span.node)
      );
    }
  }
  return {};
}

Result<void> check_head(const DumpHead& head, std::size_t line) {
  if (!std::ranges::is_sorted(head.ranks, std::ranges::less_equal{})) {
    return wrong(line, "ranks", "ranks are not ascending");
  }
  for (const auto& [path, ranks] : {std::pair("ranks", &head.ranks), std::pair("missing", &head.missing)}) {
    if (const Result<void> known = check_ranks(path, *ranks, head.world_size, line); !known) {
      return known;
    }
  }
  if (head.cause) {
    if (const Result<void> known = check_ranks("cause.ranks", head.cause->ranks, head.world_size, line); !known) {
      return known;
    }
  }
  return check_spans(head, line);
}

/// One file, line by line.
class DumpReader {
 public:
  Result<void> read(const std::string& text, std::size_t line) {
    const Result<Value> root = tapes_.read(text);
    if (!root) {
      return in_line(root.error(), line);
    }
    if (!has_head_) {
      has_head_ = true;
      const Result<void> read = take(*root, line, file_.head);
      return read ? check_head(file_.head, line) : read;
    }
    const std::optional<Value> kind = root->is(TokenType::Object) ? root->member("record") : std::nullopt;
    const std::string_view name = kind && kind->is(TokenType::String) ? kind->text() : std::string_view();
    if (name == "bucket") {
      return add(*root, line, file_.buckets);
    }
    return name == "link" ? add(*root, line, file_.links) : add_attempt(*root, line);
  }

  [[nodiscard]] bool has_head() const { return has_head_; }

  DumpFile take() { return std::move(file_); }

 private:
  template <typename T>
  Result<void> take(Value value, std::size_t line, T& out) {
    const Result<void> read = read_params(fields_, value, out);
    return read ? read : in_line(read.error(), line);
  }

  template <typename T>
  Result<void> add(Value value, std::size_t line, std::vector<T>& all) {
    if (all.size() == kMostDumpRecords) {
      return wrong(line, "record", fmt::format("there are more than {} records of this kind", kMostDumpRecords));
    }
    T& added = all.emplace_back();
    const DumpRecord kind = added.record;
    if (const Result<void> read = take(value, line, added); !read) {
      return read;
    }
    return added.record == kind ? Result<void>{} : wrong(line, "record", "record is of another kind");
  }

  /// What has no kind of its own is refused here, with the field.
  Result<void> add_attempt(Value value, std::size_t line) {
    if (const Result<void> added = add(value, line, file_.attempts); !added) {
      return added;
    }
    const DumpAttempt& last = file_.attempts.back();
    if (file_.attempts.size() > 1) {
      const DumpAttempt& before = *(file_.attempts.end() - 2);
      if (std::pair(before.epoch, before.attempt) >= std::pair(last.epoch, last.attempt)) {
        return wrong(
            line, "attempt", fmt::format("attempt {} of epoch {} comes behind a later one", last.attempt, last.epoch)
        );
      }
    }
    return check_ranks("missing", last.missing, file_.head.world_size, line);
  }

  TapeReader tapes_{kDumpDepth};
  FieldReader fields_;
  DumpFile file_;
  bool has_head_ = false;
};

/// The next line; false at the end of the file. A line that is too long is cut where that shows.
bool next_line(std::istream& in, std::string& text) {
  text.clear();
  std::streambuf& bytes = *in.rdbuf();
  for (int next = bytes.sbumpc(); next != std::char_traits<char>::eof(); next = bytes.sbumpc()) {
    if (next == '\n') {
      return true;
    }
    if (text.size() > kMostDumpLine) {
      return true;
    }
    text.push_back(static_cast<char>(next));
  }
  return !text.empty();
}

}  // namespace

DumpFile dump_file(const engine::FlightDump& dump, const DumpOrigin& origin) {
  DumpFile file;
  file.head = head_of(dump, origin);
  std::map<std::uint64_t, std::int64_t> steps;
  for (const engine::AttemptRecord& record : dump.attempts) {
    file.attempts.push_back(line_of(record));
    if (record.step >= 0) {
      steps[record.word] = record.step;
    }
  }
  std::uint64_t seq = dump.first_bucket;
  for (const engine::BucketRecord& record : dump.buckets) {
    const auto step = steps.find(record.word);
    file.buckets.push_back(line_of(record, seq++, step == steps.end() ? std::nullopt : std::optional(step->second)));
  }
  for (const engine::LinkRecord& record : dump.links) {
    file.links.push_back(line_of(record));
  }
  return file;
}

std::string dump_text(const DumpFile& file) {
  std::string text = to_json(file.head) + "\n";
  const auto append = [&text](const auto& lines) {
    for (const auto& line : lines) {
      text += to_json(line);
      text += '\n';
    }
  };
  append(file.attempts);
  append(file.buckets);
  append(file.links);
  return text;
}

Result<DumpFile> read_dump_file(std::istream& in) {
  DumpReader reader;
  std::string text;
  for (std::size_t line = 1; next_line(in, text); ++line) {
    if (text.size() > kMostDumpLine) {
      return wrong(line, "", fmt::format("the line is longer than {}", human_bytes(kMostDumpLine)));
    }
    if (text.empty()) {
      continue;
    }
    if (const Result<void> read = reader.read(text, line); !read) {
      return read.error();
    }
  }
  if (!reader.has_head()) {
    return make_error(
        ErrorCode::ParseError, "the file is empty", "dumps of the flight recorder lie in blackbox.folder of the daemon"
    );
  }
  return reader.take();
}

}  // namespace gradsync::rpc
