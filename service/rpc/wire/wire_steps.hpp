#pragma once
// The last steps of one job, for a page: GET /steps. Attempts and buckets are lines as of a dump of the flight
// recorder.

#include "engine/report/report.hpp"
#include "rpc/wire/dump_lines.hpp"
#include "rpc/wire/wire_step.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace gradsync::rpc {

/// A committed step as a point of a curve.
struct StepPoint {
  std::int64_t step = 0;
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  double norm = 0;
  double threshold = 0;
  double coefficient = 1;
  bool clipped = false;
  bool skipped = false;
  std::string reason;
  engine::StepTimings timings;
};

/// A committed step with tensors that are not as they should be: the first of each kind.
struct StepFindings {
  std::int64_t step = 0;
  std::vector<engine::NonfiniteReport> nonfinite;
  std::vector<engine::DivergenceReport> divergence;
  std::vector<engine::MissingReport> missing;
  std::int64_t left_out = 0;
};

/// How often a rank asked last, and for how long the others waited for it alone.
struct RankLag {
  std::int64_t rank = 0;
  std::int64_t times_last = 0;
  double waited_s = 0;
};

struct StepsAnswer {
  std::string job;
  std::uint32_t uid = 0;
  std::int64_t taken_us = 0;
  std::vector<StepPoint> steps;
  std::vector<StepFindings> findings;
  std::int64_t lag_attempts = 0;
  std::vector<RankLag> lag;
  std::vector<DumpAttempt> attempts;
  std::vector<DumpBucket> buckets;
};

template <>
struct Fields<StepPoint> {
  static constexpr const char* kName = "StepPoint";

  static void visit(auto& v, auto& s) {
    v.required("step", s.step, "the trainer's label");
    v.required("epoch", s.epoch, "membership of the job");
    v.required("attempt", s.attempt, "this execution");
    v.required("norm", s.norm, "before clipping");
    v.required("threshold", s.threshold, "of the first clip group");
    v.required("coefficient", s.coefficient, "of the first clip group");
    v.required("clipped", s.clipped, "any group");
    v.required("skipped", s.skipped, "no optimizer steps");
    v.required("reason", s.reason, "in words");
    v.required("timings", s.timings, "in seconds");
  }
};

template <>
struct Fields<StepFindings> {
  static constexpr const char* kName = "StepFindings";

  static void visit(auto& v, auto& s) {
    v.required("step", s.step, "the trainer's label");
    v.required("nonfinite", s.nonfinite, "tensors with NaN or infinities");
    v.required("divergence", s.divergence, "tensors whose replicas differ");
    v.required("missing", s.missing, "tensors without a gradient on some of their ranks");
    v.required("left_out", s.left_out, "tensors of the step that are not listed");
  }
};

template <>
struct Fields<RankLag> {
  static constexpr const char* kName = "RankLag";

  static void visit(auto& v, auto& s) {
    v.required("rank", s.rank, "of this node");
    v.required("times_last", s.times_last, "attempts in which it asked last");
    v.required("waited_s", s.waited_s, "how long the others waited for it alone, in these attempts");
  }
};

template <>
struct Fields<StepsAnswer> {
  static constexpr const char* kName = "StepsResult";

  static void visit(auto& v, auto& s) {
    v.required("job", s.job, "name");
    v.required("uid", s.uid, "owner");
    v.required("taken_us", s.taken_us, "now, by the clock of the attempts");
    v.required("steps", s.steps, "the last committed ones, oldest first");
    v.required("findings", s.findings, "the last of these steps that have some, oldest first");
    v.required("lag_attempts", s.lag_attempts, "the last attempts that were done, over which lag is counted");
    v.required("lag", s.lag, "by rank, those that were last");
    v.required("attempts", s.attempts, "the last ones, and the last that failed, oldest first");
    v.required("buckets", s.buckets, "of the last attempts");
  }
};

}  // namespace gradsync::rpc
