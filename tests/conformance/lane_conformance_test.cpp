// What every lane does, on each kind of lane: the reports are equal but for times, and so is every byte of every arena.

#include "conformance/alike.hpp"
#include "device/math/norm_totals.hpp"
#include "unit/device/codec/lane_samples.hpp"
#include "unit/device/random_job.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::device {
namespace {

using testing::HasSubstr;

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
    run.ask(ReadRows{kPlan, 1, {0}, {}});
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
  for (const LaneKind kind : all_kinds()) {
    const bool emulated = kind == LaneKind::Gpu || kind == LaneKind::GpuProcess;
    const ShardedJob job = pair_job(emulated ? 50'000 : 2'000'000);
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
  for (const LaneKind kind : all_kinds()) {
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

/// Values whose sums are rounded, so that the order of every addition shows; now and then tiny, huge or not finite.
void fill_roughly(ShardedJob& job, std::mt19937_64& random) {
  constexpr double kScales[] = {1, 1, 1, 1e-30, 1e-160, 1e30};
  const double scale = kScales[random() % 6];
  const bool spoilt = random() % 6 == 0;
  job.fill(random);
  job.for_each_source([&](std::uint32_t rank, std::uint32_t memory, std::uint64_t elements) {
    for (std::uint64_t i = 0; i < elements; ++i) {
      const double value = (static_cast<double>(random() >> 11) * 0x1p-53 - 0.5) * scale;
      const bool infinite = spoilt && random() % 997 == 0;
      job.set(rank, memory, i, infinite ? std::numeric_limits<double>::infinity() : value);
    }
  });
}

using UnusedPairs = std::set<std::pair<std::uint32_t, std::uint32_t>>;

/// How a random step goes.
struct StepShape {
  UnusedPairs unused;
  std::vector<plan::ClipRule> rules;
  bool at_once = false;  ///< else it is measured first and scaled then
  bool compare = false;
  bool defer = false;
};

void run_step(LaneRun& run, const ShardedJob& job, Tag tag, const StepShape& shape) {
  run.write(job);
  for (std::uint32_t bucket = 0; bucket < job.layout.buckets.size(); ++bucket) {
    ReduceBucket command{kPlan, tag, bucket, {}, shape.compare, shape.defer};
    for (const auto& [tensor, rank] : shape.unused) {
      if (job.layout.tensors[tensor].bucket == bucket) {
        command.unused.push_back({tensor, rank});
      }
    }
    run.ask(std::move(command));
  }
  const LaneReport finished = run.ask(finish_of(kPlan, tag, shape.rules, shape.at_once));
  if (const auto* report = std::get_if<Finished>(&finished); report != nullptr && !shape.at_once) {
    run.ask(ScaleGradients{kPlan, tag, report->math.groups});
  }
}

plan::ClipRule random_rule(std::mt19937_64& random) {
  plan::ClipRule rule = strict_rule(random() % 3 == 0 ? std::optional<double>() : 0.5);
  constexpr plan::NonfiniteAction kActions[] = {
      plan::NonfiniteAction::Propagate, plan::NonfiniteAction::Zero, plan::NonfiniteAction::Skip};
  rule.nonfinite = kActions[random() % 3];
  return rule;
}

// The worlds of ADR 0009: ranks that hold parts, replicas and tied copies of tensors, and contribute or do not.
TEST(RandomWorlds, leave_equal_bits_on_every_kind_of_lane) {
  std::vector<LaneKind> kinds = all_kinds();
  std::erase(kinds, LaneKind::Process);  // the bytes of a process lane are tested above
  std::erase(kinds, LaneKind::GpuProcess);
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomJob maker(seed);
    ShardedJob job = maker.make();
    job.load();
    std::vector<std::unique_ptr<LaneRun>> runs;
    for (const LaneKind kind : kinds) {
      runs.push_back(std::make_unique<LaneRun>(kind));
      runs.back()->load(job);
    }
    for (Tag tag = 1; tag <= 3; ++tag) {
      fill_roughly(job, maker.random());
      StepShape shape;
      shape.unused = tag == 3 ? UnusedPairs() : maker.unused(job);
      for (std::uint32_t group = 0; group < job.layout.clip_groups; ++group) {
        shape.rules.push_back(random_rule(maker.random()));
      }
      shape.at_once = maker.random()() % 2 == 0;
      shape.compare = maker.random()() % 2 == 0;
      shape.defer = maker.random()() % 2 == 0;
      for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
        run_step(*runs[kind], job, tag, shape);
        expect_equal(*runs[0], *runs[kind], name_of(kinds[kind]));
      }
    }
    if (testing::Test::HasFailure()) {
      return;
    }
  }
}

/// Bucket 1 is another lane's, over the same memory. Together they leave the bytes of one lane, and their sums are its
/// sums.
TEST_P(LaneConformance, two_lanes_that_share_a_plan_do_the_step_of_one) {
  const ShardedJob job = mixed_job(world());
  const std::vector<plan::ClipRule> rules(job.layout.clip_groups, strict_rule(0.5));
  const auto alone = std::make_unique<LaneRun>(LaneKind::Host);
  alone->load(job);
  reduce_all(*alone, 1);
  const auto finished = std::get<Finished>(alone->ask(finish_of(kPlan, 1, rules)));
  for (const LaneKind kind : all_kinds()) {
    LaneRun first(kind);
    LaneRun second(kind);
    first.load(job);
    for (std::size_t rank = 0; rank < first.arenas.size(); ++rank) {
      second.lane().submit(MapBuffer{rank + 1, first.arenas[rank].descriptor(), first.arenas[rank].size_bytes()});
      second.expect<Mapped>();
    }
    second.lane().submit(LoadPlan{kPlan, job.layout});
    second.expect<Loaded>();
    const std::vector<std::pair<LaneRun*, std::vector<std::uint32_t>>> shares{{&first, {0, 2}}, {&second, {1}}};
    EXPECT_THAT(
        std::get<Failed>(first.ask(MeasureBuckets{kPlan, 1, {0}})).message, HasSubstr("bucket 0 does not hold")
    );
    std::vector<TensorCell> cells;
    for (const auto& [run, buckets] : shares) {
      for (const std::uint32_t bucket : buckets) {
        run->lane().submit(ReduceBucket{kPlan, 1, bucket, {}, true, false});
        run->expect<Reduced>();
      }
      const auto measured = std::get<Measured>(run->ask(MeasureBuckets{kPlan, 1, buckets}));
      EXPECT_TRUE(measured.findings.nonfinite.empty());
      cells.insert(cells.end(), measured.cells.begin(), measured.cells.end());
    }
    EXPECT_THAT(std::get<Failed>(second.ask(MeasureBuckets{kPlan, 1, {0, 1}})).message, HasSubstr("bucket 0"));
    EXPECT_THAT(std::get<Failed>(second.ask(MeasureBuckets{kPlan, 1, {}})).message, HasSubstr("takes no part"));
    std::ranges::sort(cells, {}, &TensorCell::tensor);
    NormTotals totals(job.layout.norm_type, job.layout.clip_groups, job.layout.layers);
    StepMath joined;
    for (const TensorCell& cell : cells) {
      const LaneTensor& tensor = job.layout.tensors[cell.tensor];
      totals.add(cell.sum, tensor.clip_group, tensor.layer);
    }
    totals.write(rules, 1.0, joined);
    EXPECT_EQ(joined.norm, finished.math.norm) << name_of(kind);
    EXPECT_EQ(joined.raw_group_norms, finished.math.raw_group_norms) << name_of(kind);
    for (const auto& [run, buckets] : shares) {
      run->lane().submit(ScaleGradients{kPlan, 1, joined.groups, buckets});
      run->expect<Scaled>();
      EXPECT_THAT(
          std::get<Failed>(run->ask(ScaleGradients{kPlan, 1, joined.groups, buckets})).message,
          HasSubstr("already finished")
      ) << "gradients are multiplied once";
    }
    for (std::size_t rank = 0; rank < first.arenas.size(); ++rank) {
      EXPECT_EQ(std::memcmp(first.arenas[rank].data(), alone->arenas[rank].data(), first.arenas[rank].size_bytes()), 0)
          << name_of(kind) << " rank " << rank;
    }
  }
}

/// What is found in a share is said by the lane that has it.
TEST_P(LaneConformance, findings_of_a_share_are_of_its_tensors) {
  ShardedJob job = mixed_job(world());
  job.set(0, 1, 3, std::numeric_limits<double>::quiet_NaN());
  const auto host = expect_alike([&](LaneRun& run) {
    run.load(job);
    reduce_all(run, 1);
    run.ask(MeasureBuckets{kPlan, 1, {0}});
    run.ask(MeasureBuckets{kPlan, 1, {2}});
  });
  const auto& first = std::get<Measured>(host->reports[host->reports.size() - 2]);
  EXPECT_EQ(first.findings.nonfinite_total, 1U);
  EXPECT_EQ(first.findings.nonfinite[0].tensor, 1U);
}

INSTANTIATE_TEST_SUITE_P(ranks, LaneConformance, testing::Values(1U, 2U, 3U, 5U, 8U), [](const auto& ranks) {
  return "of_" + std::to_string(ranks.param);
});

}  // namespace
}  // namespace gradsync::device
