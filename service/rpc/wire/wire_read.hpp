#pragma once
// Read models and operations on the wire: stats, status, log level, events.

#include "engine/report/report.hpp"
#include "rpc/json/codec.hpp"
#include "rpc/wire/wire_step.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::rpc {

struct StatsParams {
  std::string job;
  std::int64_t last = 1;
};

struct StatsAnswer {
  std::vector<std::shared_ptr<const engine::StepReport>> reports;
};

struct StatusAnswer {
  std::string version;
  std::string incarnation;
  std::int64_t pid = 0;
  std::string state;
  double uptime_s = 0;
  std::vector<engine::JobStatus> jobs;
  std::int64_t jobs_left_out = 0;
};

enum class LogLevel : std::uint8_t { Trace, Debug, Info, Warn, Error };

struct LogLevelParams {
  LogLevel level = LogLevel::Info;
};

struct LogLevelAnswer {
  std::string previous;
};

enum class Topic : std::uint8_t { Step, Alert, Epoch };

struct SubscribeParams {
  std::vector<Topic> topics;
  std::optional<std::string> job;
};

struct SubscribeAnswer {
  std::uint64_t subscription = 0;
};

struct UnsubscribeParams {
  std::uint64_t subscription = 0;
};

struct AlertEvent {
  std::string kind;
  std::string what;
};

struct EpochEvent {
  std::uint64_t epoch = 0;
  std::string what;
};

template <>
struct EnumNames<LogLevel> {
  static constexpr std::array<std::pair<const char*, LogLevel>, 5> kEntries{{
      {"trace", LogLevel::Trace},
      {"debug", LogLevel::Debug},
      {"info", LogLevel::Info},
      {"warn", LogLevel::Warn},
      {"error", LogLevel::Error},
  }};
};

template <>
struct EnumNames<Topic> {
  static constexpr std::array<std::pair<const char*, Topic>, 3> kEntries{{
      {"step", Topic::Step},
      {"alert", Topic::Alert},
      {"epoch", Topic::Epoch},
  }};
};

template <>
struct Fields<StatsParams> {
  static constexpr const char* kName = "StatsParams";

  static void visit(auto& v, auto& s) {
    v.required("job", s.job, "name of the job", kNameLength);
    v.optional("last", s.last, "how many reports", Bounds{1, 100});
  }
};

template <>
struct Fields<StatsAnswer> {
  static constexpr const char* kName = "StatsResult";

  static void visit(auto& v, auto& s) { v.required("reports", s.reports, "oldest first; the newest that fit"); }
};

template <>
struct Fields<engine::RankStatus> {
  static constexpr const char* kName = "RankStatus";

  static void visit(auto& v, auto& s) {
    v.required("rank", s.rank, "in the job");
    v.required("state", s.state, "attached, declared or disconnected");
    v.required("pid", s.pid, "of its process; 0: not known");
    v.required("waiting_in", s.waiting_in, "method of the call it waits in, or empty");
    v.required("waited_s", s.waited_s, "for how long");
    v.required("paused", s.paused, "no deadline waits for it");
    v.required("arena_bytes", s.arena_bytes, "of its buffers");
    v.required("measured_by", s.measured_by, "what takes its statistics, or empty");
  }
};

template <>
struct Fields<engine::ClipStatus> {
  static constexpr const char* kName = "ClipStatus";

  static void visit(auto& v, auto& s) {
    v.required("group", s.group, "name of the clip group");
    v.required("policy", s.policy, "in words");
    v.required("watches", s.watches, "it says only what it would have done");
    v.required("steps", s.steps, "of its last whole window, or of the first so far");
    v.required("clip_rate", s.clip_rate, "share of these steps whose norm exceeded the threshold");
    v.required("threshold", s.threshold, "of the last of these steps");
    v.required("threshold_lowest", s.threshold_lowest, "of these steps");
    v.required("threshold_highest", s.threshold_highest, "of these steps");
    v.required("signs", s.signs, "of ill health, in words");
  }
};

template <>
struct Fields<engine::CommunicatorStatus> {
  static constexpr const char* kName = "CommunicatorStatus";

  static void visit(auto& v, auto& s) {
    v.required("name", s.name, "axes, and 16 hex digits of the ranks");
    v.required("ranks", s.ranks, "that bring something; with nccl: that stand for its members");
    v.required("transport", s.transport, "sockets or nccl");
    v.required("epoch", s.epoch, "that its connections belong to");
    v.required("state", s.state, "connecting, idle or reducing");
    v.required("sent_bytes", s.sent_bytes, "by this node, in this epoch; with nccl: what it gave to collectives");
    v.required("received_bytes", s.received_bytes, "by this node, in this epoch; with nccl: what it got of them");
    v.required("operations", s.operations, "buckets reduced; with nccl: collectives");
    v.required("operations_per_step", s.operations_per_step, "of a whole step");
    v.required("last_use_age_s", s.last_use_age_s, "−1: not used yet");
  }
};

template <>
struct Fields<engine::JobStatus> {
  static constexpr const char* kName = "JobStatus";

  static void visit(auto& v, auto& s) {
    v.required("job", s.job, "name");
    v.required("uid", s.uid, "owner");
    v.required("world_size", s.world_size, "ranks");
    v.required("state", s.state, "forming, ready or stepping");
    v.required("reason", s.reason, "what it waits for, in words");
    v.required("epoch", s.epoch, "membership");
    v.required("attempt", s.attempt, "the next");
    v.required("last_step", s.last_step, "label of the last committed step, or −1");
    v.required("steps_committed", s.steps_committed, "since the job began");
    v.required("steps_failed", s.steps_failed, "since the job began");
    v.required("plan_digest", s.plan_digest, "or empty");
    v.required("tensors", s.tensors, "of the plan");
    v.required("buckets", s.buckets, "of the plan");
    v.required("data_path", s.data_path, "how gradients are handed over");
    v.required("last_commit_age_s", s.last_commit_age_s, "−1: no step yet");
    v.required("norm", s.norm, "of the last committed step");
    v.required("threshold", s.threshold, "of the last committed step");
    v.required("clip", s.clip, "the policies of the clip groups, at most 16");
    v.required("communicators", s.communicators, "ranks whose gradients travel between nodes, at most 16");
    v.required("ranks", s.ranks, "those that have a process");
    v.required("absent", s.absent, "how many ranks have none");
    v.required("absent_ranks", s.absent_ranks, "the lowest 20 of these");
    v.optional("partial_sums", s.partial_sums, "bfloat16: how partial sums travel between nodes; absent: exactly");
  }
};

template <>
struct Fields<StatusAnswer> {
  static constexpr const char* kName = "StatusResult";

  static void visit(auto& v, auto& s) {
    v.required("version", s.version, "of the daemon");
    v.required("incarnation", s.incarnation, "16 hex digits, new at every start");
    v.required("pid", s.pid, "of the daemon");
    v.required("state", s.state, "serving or draining");
    v.required("uptime_s", s.uptime_s, "since the daemon started");
    v.required("jobs", s.jobs, "of the caller's uid; all, for root");
    v.required("jobs_left_out", s.jobs_left_out, "that do not fit into one answer");
  }
};

template <>
struct Fields<LogLevelParams> {
  static constexpr const char* kName = "LogLevelParams";

  static void visit(auto& v, auto& s) { v.required("level", s.level, "from now on"); }
};

template <>
struct Fields<LogLevelAnswer> {
  static constexpr const char* kName = "LogLevelResult";

  static void visit(auto& v, auto& s) { v.required("previous", s.previous, "level before"); }
};

template <>
struct Fields<SubscribeParams> {
  static constexpr const char* kName = "SubscribeParams";

  static void visit(auto& v, auto& s) {
    v.required("topics", s.topics, "what to push", Bounds{1, 3});
    v.optional("job", s.job, "only of this job", kNameLength);
  }
};

template <>
struct Fields<SubscribeAnswer> {
  static constexpr const char* kName = "SubscribeResult";

  static void visit(auto& v, auto& s) { v.required("subscription", s.subscription, "its id on this connection"); }
};

template <>
struct Fields<UnsubscribeParams> {
  static constexpr const char* kName = "UnsubscribeParams";

  static void visit(auto& v, auto& s) { v.required("subscription", s.subscription, "its id on this connection"); }
};

template <>
struct Fields<AlertEvent> {
  static constexpr const char* kName = "AlertEvent";

  static void visit(auto& v, auto& s) {
    v.required(
        "kind",
        s.kind,
        "an error kind, nonfinite, divergence, deadline_half, lane_stuck, step_skipped, step_raised, policy_state or "
        "clip_health"
    );
    v.required("what", s.what, "in words");
  }
};

template <>
struct Fields<EpochEvent> {
  static constexpr const char* kName = "EpochEvent";

  static void visit(auto& v, auto& s) {
    v.required("epoch", s.epoch, "from now on");
    v.required("what", s.what, "in words");
  }
};

}  // namespace gradsync::rpc
