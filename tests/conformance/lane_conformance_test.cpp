// What every lane does, on each kind of lane: the reports are equal but for times, and so is every byte of every arena.

#include "conformance/lane_kinds.hpp"
#include "device/lane_codec.hpp"
#include "unit/device/codec/lane_samples.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace gradsync::device {
namespace {

using testing::HasSubstr;

constexpr PlanId kPlan = LaneRun::kPlan;

/// A report as bytes, without the times, which differ from run to run.
std::vector<std::byte> timeless(LaneReport report) {
  if (auto* reduced = std::get_if<Reduced>(&report)) {
    reduced->busy_s = 0;
  } else if (auto* finished = std::get_if<Finished>(&report)) {
    finished->math.norm_s = finished->math.clip_s = 0;
  } else if (auto* scaled = std::get_if<Scaled>(&report)) {
    scaled->clip_s = 0;
  }
  return encode(report).bytes;
}

using Scenario = std::function<void(LaneRun&)>;

class LaneConformance : public testing::TestWithParam<std::uint32_t> {
 protected:
  static std::uint32_t world() { return GetParam(); }

  /// Runs it on every kind of lane. Returns the run on the host lane.
  static std::unique_ptr<LaneRun> expect_alike(const Scenario& scenario) {
    auto host = std::make_unique<LaneRun>(LaneKind::Host);
    scenario(*host);
    LaneRun process(LaneKind::Process);
    scenario(process);
    EXPECT_EQ(host->reports.size(), process.reports.size());
    for (std::size_t i = 0; i < std::min(host->reports.size(), process.reports.size()); ++i) {
      EXPECT_EQ(timeless(host->reports[i]), timeless(process.reports[i])) << "report " << i;
    }
    EXPECT_EQ(host->arenas.size(), process.arenas.size());
    for (std::size_t i = 0; i < std::min(host->arenas.size(), process.arenas.size()); ++i) {
      EXPECT_EQ(std::memcmp(host->arenas[i].data(), process.arenas[i].data(), host->arenas[i].size_bytes()), 0)
          << "arena " << i;
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

TEST_P(LaneConformance, steps_leave_equal_bits_and_equal_reports) {
  const ShardedJob job = mixed_job(world());
  const auto host = expect_alike([&](LaneRun& run) {
    run.load(job);
    for (const double max_norm : {1e9, 0.5}) {
      const Tag tag = run.reports.size();
      run.lane().submit(SetWidth{max_norm > 1});
      reduce_all(run, tag);
      run.ask(finish_of(kPlan, tag, {strict_rule(max_norm), strict_rule(std::nullopt)}));
    }
  });
  const auto& finished = std::get<Finished>(host->reports.back());
  EXPECT_TRUE(finished.math.groups[0].clipped);
  EXPECT_GT(finished.math.norm, 0);
}

TEST_P(LaneConformance, a_step_that_is_measured_first_and_scaled_then) {
  const ShardedJob job = mixed_job(world());
  const auto host = expect_alike([&](LaneRun& run) {
    run.load(job);
    reduce_all(run, 1);
    const LaneReport measured = run.ask(finish_of(kPlan, 1, {strict_rule(0.25), strict_rule(0.5)}, false));
    const auto* finished = std::get_if<Finished>(&measured);
    ASSERT_NE(finished, nullptr);
    run.ask(ScaleGradients{kPlan, 1, finished->math.groups});
  });
  EXPECT_TRUE(std::holds_alternative<Scaled>(host->reports.back()));
}

TEST_P(LaneConformance, tensors_that_some_or_all_ranks_did_not_use) {
  const ShardedJob job = mixed_job(world());
  const auto host = expect_alike([&](LaneRun& run) {
    run.load(job);
    std::vector<UnusedTensor> unused{{2, 0}};
    for (std::int64_t rank = 0; rank < world(); ++rank) {
      unused.push_back({4, rank});
    }
    reduce_all(run, 1, unused);
    run.ask(finish_of(kPlan, 1, {strict_rule(1.0), strict_rule(1.0)}));
  });
  const std::vector<std::uint32_t>& absent = std::get<Finished>(host->reports.back()).math.absent;
  EXPECT_THAT(absent, testing::Contains(4U));
}

TEST_P(LaneConformance, what_is_not_finite_or_differs_is_found_alike) {
  ShardedJob job = mixed_job(world());
  job.set(world() - 1, 2, 7, std::numeric_limits<double>::infinity());
  job.set(0, 8, 1, std::numeric_limits<double>::quiet_NaN());
  const auto host = expect_alike([&](LaneRun& run) {
    run.load(job);
    reduce_all(run, 1);
    run.ask(finish_of(kPlan, 1, {strict_rule(1.0), strict_rule(1.0)}));
  });
  EXPECT_EQ(std::get<Finished>(host->reports.back()).math.nonfinite.size(), 2U);
}

TEST_P(LaneConformance, a_plan_that_no_datagram_holds) {
  ShardedJob job(world());
  job.add_bucket(plan::DType::Float32, 1.0);
  for (int tensor = 0; tensor < 2000; ++tensor) {
    job.add(replicated({3}, {all_ranks(world())}));
  }
  job.load();
  std::mt19937_64 random(1);
  job.fill(random);
  expect_alike([&](LaneRun& run) {
    run.load(job);
    std::vector<UnusedTensor> unused;
    for (std::uint32_t tensor = 0; tensor < 2000; ++tensor) {
      unused.push_back({tensor, 0});
    }
    run.ask(ReduceBucket{kPlan, 1, 0, unused, false, false});
    run.ask(finish_of(kPlan, 1, {strict_rule(0.5)}));
  });
}

TEST_P(LaneConformance, a_plan_of_stats_reads_the_tables) {
  StatsPlan plan;
  plan.world_size = world();
  plan.tensors.resize(3);
  std::vector<StatsRow> rows;
  for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      plan.tensors[tensor].holders.push_back({rank, tensor, rank, 10});
    }
    rows.push_back({7, 1.5 + tensor, 0, 1, 1.0, 0, 0, 0});
  }
  for (std::uint32_t rank = 0; rank < world(); ++rank) {
    plan.rank_buffers.push_back(rank + 1);
  }
  const auto host = expect_alike([&](LaneRun& run) {
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      run.arenas.emplace_back(rows.size() * sizeof(StatsRow));
      std::memcpy(run.arenas[rank].data(), rows.data(), rows.size() * sizeof(StatsRow));
      run.ask(MapBuffer{rank + 1, run.arenas[rank].descriptor(), run.arenas[rank].size_bytes()});
    }
    run.ask(LoadStats{kPlan, plan});
    FinishStep finish = finish_of(kPlan, 1, {strict_rule(0.5)});
    finish.stamp = 7;
    run.ask(std::move(finish));
    finish = finish_of(kPlan, 2, {strict_rule(0.5)});
    finish.stamp = 8;  // the rows are stale
    run.ask(std::move(finish));
  });
  EXPECT_GT(std::get<Finished>(host->reports[host->reports.size() - 2]).math.norm, 0);
  EXPECT_TRUE(std::get<Failed>(host->reports.back()).row.has_value());
}

TEST_P(LaneConformance, what_cannot_be_done_fails_alike) {
  const ShardedJob job = mixed_job(world());
  const auto host = expect_alike([&](LaneRun& run) {
    run.load(job);
    run.ask(LoadPlan{kPlan, job.layout});
    LanePlan foreign = job.layout;
    foreign.rank_buffers.back() = 99;
    run.ask(LoadPlan{7, foreign});
    run.ask(UnloadPlan{7});
    run.ask(UnmapBuffer{99});
    run.ask(ReduceBucket{7, 1, 0, {}, false, false});
    run.ask(ReduceBucket{kPlan, 1, 5, {}, false, false});
    run.ask(ReduceBucket{kPlan, 1, 0, {{99, 0}}, false, false});
    run.ask(finish_of(kPlan, 1, {strict_rule(1.0), strict_rule(1.0)}));
    run.ask(MapBuffer{50, UniqueFd(), 4096});
    run.ask(MapBuffer{50, sample_fd(), 4096});
  });
  const std::size_t loads = world() + 1;
  for (std::size_t i = loads; i < host->reports.size(); ++i) {
    EXPECT_TRUE(std::holds_alternative<Failed>(host->reports[i])) << i;
  }
  EXPECT_THAT(std::get<Failed>(host->reports[loads]).message, HasSubstr("already loaded"));
}

TEST_P(LaneConformance, an_attempt_once_aborted_stays_so_and_a_later_one_is_free) {
  const ShardedJob job = mixed_job(world());
  const auto host = expect_alike([&](LaneRun& run) {
    run.load(job);
    run.ask(Abort{kPlan, 5});
    run.ask(ReduceBucket{kPlan, 5, 0, {}, false, false});
    run.ask(finish_of(kPlan, 4, {strict_rule(1.0), strict_rule(1.0)}));
    run.ask(ScaleGradients{kPlan, 5, {{}, {}}});
    reduce_all(run, 6);
    run.ask(finish_of(kPlan, 6, {strict_rule(1.0), strict_rule(1.0)}));
  });
  for (std::size_t i = world() + 2; i < world() + 5; ++i) {
    EXPECT_TRUE(std::get<Failed>(host->reports[i]).aborted);
  }
  EXPECT_TRUE(std::holds_alternative<Finished>(host->reports.back()));
}

TEST_P(LaneConformance, an_abort_is_answered_after_what_it_ends) {
  const ShardedJob job = pair_job(2'000'000);
  for (const LaneKind kind : {LaneKind::Host, LaneKind::Process}) {
    LaneRun run(kind);
    run.load(job);
    constexpr Tag kReductions = 30;
    for (Tag tag = 1; tag <= kReductions; ++tag) {
      run.lane().submit(ReduceBucket{kPlan, tag, 0, {}, false, false});
    }
    run.lane().submit(Abort{kPlan, kReductions});
    for (Tag tag = 1; tag <= kReductions; ++tag) {
      const LaneReport& report = run.next();
      const auto* failed = std::get_if<Failed>(&report);
      EXPECT_TRUE(std::holds_alternative<Reduced>(report) || (failed != nullptr && failed->aborted))
          << tag << ": " << (failed != nullptr ? failed->message : "");
    }
    run.expect<Aborted>();
  }
}

TEST_P(LaneConformance, a_buffer_that_is_unmapped_loses_its_pages) {
  expect_alike([&](LaneRun& run) {
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      run.arenas.emplace_back(1U << 16);
      std::memset(run.arenas[rank].data(), 7, run.arenas[rank].size_bytes());
      if (rank % 2 == 0) {
        run.ask(MapBuffer{rank + 1, run.arenas[rank].descriptor(), run.arenas[rank].size_bytes()});
        run.ask(UnmapBuffer{rank + 1});
      } else {  // never mapped: by its descriptor
        run.ask(UnmapBuffer{rank + 1, run.arenas[rank].descriptor(), run.arenas[rank].size_bytes()});
      }
      EXPECT_EQ(run.arenas[rank].data()[4097], std::byte{0});
    }
  });
}

TEST_P(LaneConformance, a_lane_finishes_what_is_queued_before_it_dies) {
  const ShardedJob job = mixed_job(world());
  for (const LaneKind kind : {LaneKind::Host, LaneKind::Process}) {
    LaneRun run(kind);
    run.load(job);
    for (Tag tag = 1; tag <= 20; ++tag) {
      run.lane().submit(ReduceBucket{kPlan, tag, 0, {}, false, false});
    }
    run.stop();
    EXPECT_EQ(run.waiting(), 20U);
    for (Tag tag = 1; tag <= 20; ++tag) {
      EXPECT_EQ(run.expect<Reduced>().tag, tag);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ranks, LaneConformance, testing::Values(1U, 2U, 3U, 5U, 8U), [](const auto& ranks) {
  return "of_" + std::to_string(ranks.param);
});

}  // namespace
}  // namespace gradsync::device
