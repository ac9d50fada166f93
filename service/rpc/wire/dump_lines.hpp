#pragma once
// The lines of a dump of the flight recorder (docs/operate/blackbox.md). Times are microseconds of the daemon's
// monotonic clock; one that is absent has not happened.

#include "engine/recorder/flight_record.hpp"
#include "rpc/json/codec.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::rpc {

enum class DumpReason : std::uint8_t { Failure, Signal, Request };

/// Why a dump was taken for a failure.
struct DumpCause {
  std::string kind;
  std::string message;
  std::vector<std::int64_t> ranks;
  std::string node;

  friend bool operator==(const DumpCause&, const DumpCause&) = default;
};

/// Ranks that follow each other, and their node.
struct DumpSpan {
  std::int64_t node = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;

  friend bool operator==(const DumpSpan&, const DumpSpan&) = default;
};

/// The first line.
struct DumpHead {
  std::int64_t version = 1;
  DumpReason why = DumpReason::Request;
  std::optional<DumpCause> cause;
  std::string job;
  std::uint32_t uid = 0;
  std::int64_t world_size = 1;
  std::int64_t restart_count = 0;
  std::string node;
  std::int64_t node_number = 0;
  std::string incarnation;
  std::string release;
  std::vector<std::int64_t> ranks;
  std::vector<DumpSpan> nodes;
  std::string plan;
  std::string data_path;
  std::uint32_t buckets = 0;
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::string waits_for;
  std::vector<std::int64_t> missing;
  std::int64_t taken_us = 0;
  std::int64_t taken_unix_us = 0;

  friend bool operator==(const DumpHead&, const DumpHead&) = default;
};

/// What a line behind the first is.
enum class DumpRecord : std::uint8_t { Attempt, Bucket, Link };

struct DumpAttempt {
  DumpRecord record = DumpRecord::Attempt;
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::optional<std::int64_t> step;
  engine::AttemptState state = engine::AttemptState::Open;
  std::int64_t begun_us = 0;
  std::optional<std::int64_t> first_ask_us;
  std::optional<std::int64_t> ask_before_last_us;
  std::optional<std::int64_t> last_ask_us;
  std::optional<std::int64_t> last_rank;
  std::uint32_t asks = 0;
  std::uint32_t launched = 0;
  std::uint32_t reduced = 0;
  std::optional<std::int64_t> measured_us;
  std::optional<std::int64_t> decided_us;
  std::optional<std::int64_t> voted_us;
  std::optional<std::int64_t> ended_us;
  std::optional<std::string> error;
  std::vector<std::int64_t> missing;
  std::uint32_t missing_count = 0;

  friend bool operator==(const DumpAttempt&, const DumpAttempt&) = default;
};

struct DumpBucket {
  DumpRecord record = DumpRecord::Bucket;
  std::uint64_t seq = 0;
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::optional<std::int64_t> step;
  std::uint32_t bucket = 0;
  std::uint64_t bytes = 0;
  engine::BucketState state = engine::BucketState::Collecting;
  std::uint32_t ready = 0;
  std::optional<std::int64_t> last_rank;
  std::optional<std::int64_t> first_ready_us;
  std::optional<std::int64_t> last_ready_us;
  std::optional<std::uint32_t> order;
  std::optional<std::int64_t> launched_us;
  std::optional<std::int64_t> done_us;

  friend bool operator==(const DumpBucket&, const DumpBucket&) = default;
};

struct DumpLink {
  DumpRecord record = DumpRecord::Link;
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::uint32_t bucket = 0;
  std::int64_t node = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::int64_t launched_us = 0;
  std::int64_t sent_us = 0;
  std::int64_t received_us = 0;
  std::optional<std::int64_t> partials_us;

  friend bool operator==(const DumpLink&, const DumpLink&) = default;
};

inline constexpr Bounds kDumpRank{0, 65'535};
inline constexpr Bounds kDumpWorld{1, 65'536};
inline constexpr Bounds kDumpRanks{0, 65'536};
inline constexpr Bounds kDumpText{0, 4096};
/// 142 years: sums and differences of such times cannot overflow.
inline constexpr Bounds kDumpTime{0, std::int64_t{1} << 52};
inline constexpr Bounds kDumpEpoch{0, std::int64_t{1} << 52};
inline constexpr Bounds kDumpBytes{0, std::int64_t{1} << 52};

template <>
struct EnumNames<DumpReason> {
  static constexpr std::array<std::pair<const char*, DumpReason>, 3> kEntries{{
      {"failure", DumpReason::Failure},
      {"signal", DumpReason::Signal},
      {"request", DumpReason::Request},
  }};
};

template <>
struct EnumNames<DumpRecord> {
  static constexpr std::array<std::pair<const char*, DumpRecord>, 3> kEntries{{
      {"attempt", DumpRecord::Attempt},
      {"bucket", DumpRecord::Bucket},
      {"link", DumpRecord::Link},
  }};
};

template <>
struct EnumNames<engine::AttemptState> {
  static constexpr std::array<std::pair<const char*, engine::AttemptState>, 3> kEntries{{
      {"open", engine::AttemptState::Open},
      {"done", engine::AttemptState::Done},
      {"failed", engine::AttemptState::Failed},
  }};
};

template <>
struct EnumNames<engine::BucketState> {
  static constexpr std::array<std::pair<const char*, engine::BucketState>, 4> kEntries{{
      {"collecting", engine::BucketState::Collecting},
      {"launched", engine::BucketState::Launched},
      {"reduced", engine::BucketState::Reduced},
      {"failed", engine::BucketState::Failed},
  }};
};

template <>
struct Fields<DumpCause> {
  static constexpr const char* kName = "DumpCause";

  static void visit(auto& v, auto& s) {
    v.required("kind", s.kind, "of the error", kNameLength);
    v.required("message", s.message, "of the error", kDumpText);
    v.required("ranks", s.ranks, "that it names", kDumpRanks);
    v.required("node", s.node, "that it names, or empty", kDumpText);
  }
};

template <>
struct Fields<DumpSpan> {
  static constexpr const char* kName = "DumpSpan";

  static void visit(auto& v, auto& s) {
    v.required("node", s.node, "number of the node", kDumpRank);
    v.required("first", s.first, "its first rank of these", kDumpRank);
    v.required("count", s.count, "how many follow each other", kDumpWorld);
  }
};

template <>
struct Fields<DumpHead> {
  static constexpr const char* kName = "DumpHead";

  static void visit(auto& v, auto& s) {
    v.required("gradsync_blackbox", s.version, "version of the format: 1", Bounds{1, 1});
    v.required("why", s.why, "what asked for the dump");
    v.optional("cause", s.cause, "the failure");
    v.required("job", s.job, "name of the job", kNameLength);
    v.required("uid", s.uid, "owner of the job");
    v.required("world_size", s.world_size, "ranks of the job", kDumpWorld);
    v.required("restart_count", s.restart_count, "of the job", kNatural);
    v.required("node", s.node, "name of this node", kNameLength);
    v.required("node_number", s.node_number, "of this node in the job", kDumpRank);
    v.required("incarnation", s.incarnation, "of the daemon", kNameLength);
    v.required("release", s.release, "of the daemon", kNameLength);
    v.required("ranks", s.ranks, "of this node, ascending", kDumpRanks);
    v.required("nodes", s.nodes, "which ranks are on which node; empty: all are here", kDumpRanks);
    v.required("plan", s.plan, "digest of the plan, or empty", kDumpText);
    v.required("data_path", s.data_path, "arena or stats, or empty", kDumpText);
    v.required("buckets", s.buckets, "of the plan");
    v.required("epoch", s.epoch, "that stands", kDumpEpoch);
    v.required("attempt", s.attempt, "that is under way, or comes next", kDumpEpoch);
    v.required("waits_for", s.waits_for, "what the job waits for, in words", kDumpText);
    v.required("missing", s.missing, "ranks here that the attempt waits for", kDumpRanks);
    v.required("taken_us", s.taken_us, "when the dump was taken", kDumpTime);
    v.required("taken_unix_us", s.taken_unix_us, "the same moment, since 1970", kDumpTime);
  }
};

template <>
struct Fields<DumpAttempt> {
  static constexpr const char* kName = "DumpAttempt";

  static void visit(auto& v, auto& s) {
    v.required("record", s.record, "attempt");
    v.required("epoch", s.epoch, "of the attempt", kDumpEpoch);
    v.required("attempt", s.attempt, "its number in the epoch", kDumpEpoch);
    v.optional("step", s.step, "the trainers' label");
    v.required("state", s.state, "what became of it");
    v.required("begun_us", s.begun_us, "the first word of any rank here", kDumpTime);
    v.optional("first_ask_us", s.first_ask_us, "the first rank asked for the step", kDumpTime);
    v.optional("ask_before_last_us", s.ask_before_last_us, "the last but one", kDumpTime);
    v.optional("last_ask_us", s.last_ask_us, "the last one", kDumpTime);
    v.optional("last_rank", s.last_rank, "that asked last", kDumpRank);
    v.required("asks", s.asks, "how often ranks here asked");
    v.required("launched", s.launched, "buckets that the lane was given");
    v.required("reduced", s.reduced, "buckets that it has reduced");
    v.optional("measured_us", s.measured_us, "the lanes have measured", kDumpTime);
    v.optional("decided_us", s.decided_us, "the decision of all nodes came", kDumpTime);
    v.optional("voted_us", s.voted_us, "everything was prepared", kDumpTime);
    v.optional("ended_us", s.ended_us, "it was done, or had failed", kDumpTime);
    v.optional("error", s.error, "kind of the error", kNameLength);
    v.required("missing", s.missing, "the first ranks that it failed for", Bounds{0, engine::AttemptRecord::kMissing});
    v.required("missing_count", s.missing_count, "how many these are in all");
  }
};

template <>
struct Fields<DumpBucket> {
  static constexpr const char* kName = "DumpBucket";

  static void visit(auto& v, auto& s) {
    v.required("record", s.record, "bucket");
    v.required("seq", s.seq, "counts the records of the job", kDumpEpoch);
    v.required("epoch", s.epoch, "of the attempt", kDumpEpoch);
    v.required("attempt", s.attempt, "its number in the epoch", kDumpEpoch);
    v.optional("step", s.step, "the trainers' label");
    v.required("bucket", s.bucket, "number of the bucket in the plan");
    v.required("bytes", s.bytes, "of one rank's gradients", kDumpBytes);
    v.required("state", s.state, "how far it came");
    v.required("ready", s.ready, "ranks here that called it ready");
    v.optional("last_rank", s.last_rank, "the last of them", kDumpRank);
    v.optional("first_ready_us", s.first_ready_us, "the first of them", kDumpTime);
    v.optional("last_ready_us", s.last_ready_us, "the last of them", kDumpTime);
    v.optional("order", s.order, "its place among the launches of the attempt, from 1");
    v.optional("launched_us", s.launched_us, "the lane was given it", kDumpTime);
    v.optional("done_us", s.done_us, "the lane had reduced it", kDumpTime);
  }
};

template <>
struct Fields<DumpLink> {
  static constexpr const char* kName = "DumpLink";

  static void visit(auto& v, auto& s) {
    v.required("record", s.record, "link");
    v.required("epoch", s.epoch, "of the attempt", kDumpEpoch);
    v.required("attempt", s.attempt, "its number in the epoch", kDumpEpoch);
    v.required("bucket", s.bucket, "number of the bucket in the plan");
    v.required("node", s.node, "number of the other node", kDumpRank);
    v.required("sent_bytes", s.sent_bytes, "to it", kDumpBytes);
    v.required("received_bytes", s.received_bytes, "from it", kDumpBytes);
    v.required("launched_us", s.launched_us, "the lane was given the bucket", kDumpTime);
    v.required("sent_us", s.sent_us, "the last byte was given away", kDumpTime);
    v.required("received_us", s.received_us, "the last byte was here", kDumpTime);
    v.optional("partials_us", s.partials_us, "its last partial sum was here", kDumpTime);
  }
};

}  // namespace gradsync::rpc
