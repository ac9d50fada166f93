#pragma once
// One run on every kind of lane: the reports are equal but for times, and so is every byte of every arena.

#include "conformance/lane_kinds.hpp"
#include "device/lane_codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::device {

inline constexpr PlanId kPlan = LaneRun::kPlan;

/// A report as bytes, without the times, which differ from run to run.
inline std::vector<std::byte> timeless(LaneReport report) {
  if (auto* reduced = std::get_if<Reduced>(&report)) {
    reduced->busy_s = 0;
  } else if (auto* finished = std::get_if<Finished>(&report)) {
    finished->math.norm_s = finished->math.clip_s = 0;
  } else if (auto* measured = std::get_if<Measured>(&report)) {
    measured->findings.norm_s = measured->findings.clip_s = 0;
  } else if (auto* scaled = std::get_if<Scaled>(&report)) {
    scaled->clip_s = 0;
  }
  return encode(report).bytes;
}

/// The reports of two lanes and every byte that they left.
inline void expect_equal(const LaneRun& host, const LaneRun& other, const std::string& name) {
  EXPECT_EQ(host.reports.size(), other.reports.size()) << name;
  for (std::size_t i = 0; i < std::min(host.reports.size(), other.reports.size()); ++i) {
    EXPECT_EQ(timeless(host.reports[i]), timeless(other.reports[i])) << name << " report " << i;
  }
  EXPECT_EQ(host.arenas.size(), other.arenas.size()) << name;
  for (std::size_t i = 0; i < std::min(host.arenas.size(), other.arenas.size()); ++i) {
    EXPECT_EQ(std::memcmp(host.arenas[i].data(), other.arenas[i].data(), host.arenas[i].size_bytes()), 0)
        << name << " arena " << i;
  }
}

using Scenario = std::function<void(LaneRun&)>;

class LaneConformance : public testing::TestWithParam<std::uint32_t> {
 protected:
  static std::uint32_t world() { return GetParam(); }

  /// Runs it on every kind of lane. Returns the run on the host lane.
  static std::unique_ptr<LaneRun> expect_alike(const Scenario& scenario) {
    auto host = std::make_unique<LaneRun>(LaneKind::Host);
    scenario(*host);
    for (const LaneKind kind : all_kinds()) {
      if (kind != LaneKind::Host) {
        LaneRun other(kind);
        scenario(other);
        expect_equal(*host, other, name_of(kind));
      }
    }
    return host;
  }

  static void reduce_all(LaneRun& run, Tag tag, const std::vector<UnusedTensor>& unused = {}) {
    for (std::uint32_t bucket = 0; bucket < 3; ++bucket) {
      ReduceBucket command{kPlan, tag, bucket, {}, true, false};
      for (const UnusedTensor& tensor : unused) {
        if (tensor.tensor / 3 == bucket) {
          command.unused.push_back(tensor);
        }
      }
      run.lane().submit(std::move(command));
    }
    for (std::uint32_t bucket = 0; bucket < 3; ++bucket) {
      run.expect<Reduced>();
    }
  }
};

}  // namespace gradsync::device
