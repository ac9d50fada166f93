// Steps of jobs whose tensors are scattered: what every rank holds afterwards, what is counted and what is reported.

#include "fakes/not_finite.hpp"
#include "unit/device/host/sharded_oracle.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace gradsync::device {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr auto kFloat32 = plan::DType::Float32;

class ShardedStep : public testing::Test {
 protected:
  static ShardedJob job(std::uint32_t world, double divisor, const std::vector<ShardedTensor>& tensors, double p = 2) {
    ShardedJob job(world, p);
    job.add_bucket(kFloat32, divisor);
    for (const ShardedTensor& tensor : tensors) {
      job.add(tensor);
    }
    return job;
  }

  /// Loads, and runs a step without and one with a clip.
  void expect_steps(ShardedJob job, const UnusedSet& unused = {}) {
    job.load();
    job.fill(random_);
    const StepMath math = expect_step(job, 1, unused);
    EXPECT_GT(math.norm, 0);
    job.fill(random_);
    EXPECT_TRUE(expect_step(job, 2, unused, 0.5).groups[0].clipped);
    job.fill(random_);
    expect_step(job, 3);
  }

  std::mt19937_64 random_{17};
};

TEST_F(ShardedStep, reduce_scatter_gives_each_rank_the_rows_it_holds) {
  ShardedJob two = job(2, 2, {scattered({3, 2}, 0, {2, 1}, {0, 1})});
  two.load();
  for (std::uint64_t i = 0; i < 6; ++i) {
    two.set(0, 0, i, static_cast<double>(i));
    two.set(1, 0, i, 10);
  }
  expect_step(two, 1);
  EXPECT_EQ(two.output(0, 0, 4), (std::vector<double>{5, 5.5, 6, 6.5}));
  EXPECT_EQ(two.output(1, 0, 2), (std::vector<double>{7, 7.5}));
  EXPECT_EQ(two.input(1, 0, 5), 10);  // the input stays
}

TEST_F(ShardedStep, reduce_scatter_of_columns_gathers_them) {
  ShardedJob two = job(2, 1, {scattered({2, 3}, 1, {2, 1}, {0, 1})});
  two.load();
  for (std::uint64_t i = 0; i < 6; ++i) {
    two.set(0, 0, i, static_cast<double>(i));
    two.set(1, 0, i, 10);
  }
  expect_step(two, 1);
  EXPECT_EQ(two.output(0, 0, 4), (std::vector<double>{10, 11, 13, 14}));
  EXPECT_EQ(two.output(1, 0, 2), (std::vector<double>{12, 15}));
}

TEST_F(ShardedStep, every_dimension_and_uneven_lengths) {
  for (std::size_t dim = 0; dim < 3; ++dim) {
    const std::uint64_t rest = std::array<std::uint64_t, 3>{1, 3, 2}[dim];
    expect_steps(job(3, 4, {scattered({5, 7, 6}, dim, {3, 1, rest}, {0, 1, 2})}));
  }
}

TEST_F(ShardedStep, ranks_without_elements_are_sources_all_the_same) {
  expect_steps(job(4, 1, {scattered({2, 40}, 0, {1, 1, 0, 0}, {0, 1, 2, 3}), scattered({40}, 0, {40, 0}, {2, 3})}));
}

TEST_F(ShardedStep, a_tensor_without_elements_is_there_or_absent) {
  ShardedJob two = job(2, 1, {scattered({0, 3}, 0, {0}, {0}), scattered({4}, 0, {2, 2}, {0, 1})});
  two.load();
  two.fill(random_);
  expect_step(two, 1);
  EXPECT_THAT(expect_step(two, 2, {{0, 0}}).absent, ElementsAre(0));
}

TEST_F(ShardedStep, large_tensors_take_many_chunks) {
  expect_steps(
      job(3,
          2,
          {scattered({301, 205}, 1, {100, 100, 5}, {2, 0, 1}),
           scattered({50'000}, 0, {16'667, 16'667, 16'666}, {0, 1, 2}),
           scattered({3, 40'000}, 1, {20'000, 19'000, 1'000}, {0, 1, 2}),
           scattered({20'000, 3}, 1, {1, 1, 1}, {0, 1, 2})})
  );
}

/// Two dimensions are cut, so that runs lie at two distances.
ShardedTensor cut_twice(const Index& shape, const Index& rows, const Index& columns) {
  ShardedTensor tensor;
  tensor.shape = shape;
  for (std::uint32_t i = 0; i < rows.size(); ++i) {
    for (std::uint32_t k = 0; k < columns.size(); ++k) {
      ShardBox box = slice(shape, 1, rows, i);
      box.begin[2] = slice(shape, 2, columns, k).begin[2];
      box.end[2] = slice(shape, 2, columns, k).end[2];
      tensor.parts.push_back({box, {sum_to({0, 1, 2, 3}, {static_cast<std::uint32_t>(i * columns.size()) + k})}});
    }
  }
  return tensor;
}

TEST_F(ShardedStep, runs_at_two_distances) {
  EXPECT_EQ(part_of_box({4, 6, 10}, {{0, 0, 0}, {4, 3, 7}}).strides.size(), 2U);
  expect_steps(job(4, 2, {cut_twice({4, 6, 10}, {3, 3}, {7, 3}), cut_twice({30, 70, 90}, {40, 30}, {33, 57})}));
}

TEST_F(ShardedStep, every_format) {
  for (const plan::DType dtype :
       {plan::DType::Float32, plan::DType::BFloat16, plan::DType::Float16, plan::DType::Float64}) {
    ShardedJob four(4);
    four.add_bucket(dtype, 4);
    four.add(scattered({9, 50}, 1, {20, 20, 10}, {0, 1, 2}));
    four.add(scattered({700}, 0, {300, 300, 100}, {3, 1, 2}));
    four.add(replicated({77}, {{0, 1}, {2, 3}}));
    expect_steps(std::move(four));
  }
}

TEST_F(ShardedStep, every_norm) {
  for (const double p : {1.0, 2.0, 3.0, 2.5, kInfinity}) {
    expect_steps(job(2, 2, {scattered({40, 30}, 1, {20, 10}, {0, 1}), scattered({100}, 0, {50, 50}, {0, 1})}, p));
  }
}

TEST_F(ShardedStep, scattered_values_beyond_the_squares_still_have_a_norm) {
  for (const double p : {2.0, 3.0}) {
    ShardedJob two(2, p);
    two.add_bucket(plan::DType::Float64, 1);
    two.add(scattered({2, 2}, 1, {1, 1}, {0, 1}));
    two.load();
    for (std::uint64_t i = 0; i < 4; ++i) {
      two.set(0, 0, i, 3e200);
      two.set(1, 0, i, 0);
    }
    const StepMath math = [&] {
      WorkerPool pool(1, "test");
      const std::atomic<bool> cancel{false};
      reduce_bucket(*two.plan, {1, 1, 0, {{0, 1}}, false}, HostPasses(pool, cancel));
      plan::ClipRule rule;
      rule.norm_dtype = plan::DType::Float64;
      return finish_step(*two.plan, {1, 1, 1.0, {rule}, true}, HostPasses(pool, cancel));
    }();
    EXPECT_NEAR(math.norm / 3e200, std::pow(4, 1 / p), 1e-14) << p;
  }
}

/// Two groups of two that hold the same parts: {0, 1} and {2, 3}.
ShardedTensor twice_scattered(const Index& shape, std::size_t dim, const Index& lengths) {
  ShardedTensor tensor = scattered(shape, dim, lengths, {0, 1});
  for (std::uint32_t k = 0; k < tensor.parts.size(); ++k) {
    tensor.parts[k].sums.push_back(sum_to({2, 3}, {2 + k}));
  }
  return tensor;
}

TEST_F(ShardedStep, replicas_of_a_part_are_counted_once_and_compared) {
  ShardedJob four = job(4, 1, {twice_scattered({2, 20'000}, 1, {12'000, 8'000})});
  four.load();
  for (std::uint64_t i = 0; i < 40'000; ++i) {
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      four.set(rank, 0, i, 1);
    }
  }
  StepMath math = expect_step(four, 1);
  EXPECT_EQ(math.counted_elements, 40'000U);
  EXPECT_THAT(math.divergence, IsEmpty());
  four.set(2, 0, 39'999, 5);
  math = expect_step(four, 2);
  ASSERT_EQ(math.divergence.size(), 1U);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(3));  // rank 2 holds other columns
}

TEST_F(ShardedStep, a_nan_of_a_replica_alone_is_in_the_norm) {
  ShardedJob four = job(4, 1, {twice_scattered({2, 20'000}, 1, {12'000, 8'000})});
  four.load();
  for (std::uint64_t i = 0; i < 40'000; ++i) {
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      four.set(rank, 0, i, 1);
    }
  }
  four.set(2, 0, 39'999, std::numeric_limits<double>::quiet_NaN());  // of the group that is not counted
  WorkerPool pool(2, "test");
  const std::atomic<bool> cancel{false};
  reduce_bucket(*four.plan, {1, 1, 0, {}, false}, HostPasses(pool, cancel));
  StepMath math = finish_step(*four.plan, {1, 1, 1.0, {{}}, true}, HostPasses(pool, cancel));
  EXPECT_TRUE(std::isnan(math.norm)) << "rank 3 is about to take it for a gradient";
  EXPECT_EQ(math.nonfinite_total, 1U);
  ASSERT_EQ(math.nonfinite.size(), 1U);
  EXPECT_THAT(math.nonfinite[0].inputs, ElementsAre(Pair(2, 1)));
  four.set(0, 0, 39'999, kInfinity);
  four.set(2, 0, 39'999, kInfinity);
  reduce_bucket(*four.plan, {1, 2, 0, {}, false}, HostPasses(pool, cancel));
  math = finish_step(*four.plan, {1, 2, 1.0, {{}}, true}, HostPasses(pool, cancel));
  EXPECT_EQ(math.norm, kInfinity);
  EXPECT_EQ(math.nonfinite_total, 1U) << "of two replicas it counts once";
}

TEST_F(ShardedStep, what_is_summed_again_rescaled_is_what_was_counted) {
  ShardedJob four(4);
  four.add_bucket(plan::DType::Float64, 1);
  four.add(twice_scattered({2, 2}, 1, {1, 1}));
  four.load();
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      four.set(rank, 0, i, 2e200);
    }
  }
  WorkerPool pool(1, "test");
  const std::atomic<bool> cancel{false};
  reduce_bucket(*four.plan, {1, 1, 0, {{0, 0}, {0, 1}}, false}, HostPasses(pool, cancel));
  plan::ClipRule rule;
  rule.norm_dtype = plan::DType::Float64;
  EXPECT_DOUBLE_EQ(finish_step(*four.plan, {1, 1, 1.0, {rule}, true}, HostPasses(pool, cancel)).norm, 8e200);
}

TEST_F(ShardedStep, a_sum_without_a_gradient_is_zero_and_its_holders_are_missing_it) {
  ShardedJob four = job(4, 2, {twice_scattered({6, 10}, 1, {6, 4})});
  four.load();
  four.fill(random_);
  StepMath math = expect_step(four, 1, {{0, 0}, {0, 1}}, 0.1);  // the second group is counted
  ASSERT_EQ(math.missing.size(), 1U);
  EXPECT_THAT(math.missing[0].ranks, ElementsAre(0, 1));
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(four.output(0, 0, 36), std::vector<double>(36, 0));
  four.fill(random_);
  math = expect_step(four, 2, {{0, 2}, {0, 3}}, 0.1);
  EXPECT_THAT(math.missing[0].ranks, ElementsAre(2, 3));
  four.fill(random_);
  expect_step(four, 3, {{0, 2}, {0, 1}}, 0.1);  // one of each: nothing is missing
}

TEST_F(ShardedStep, a_part_without_any_gradient_is_missing_but_does_not_diverge) {
  ShardedTensor tensor = scattered({8, 3}, 0, {4, 4}, {0, 1});
  tensor.parts[0].sums = {sum_to({0}, {0})};  // as where shards of experts are not summed with each other
  tensor.parts[1].sums = {sum_to({1}, {1})};
  ShardedJob two = job(2, 2, {tensor});
  two.load();
  two.fill(random_);
  const StepMath math = expect_step(two, 1, {{0, 1}}, 0.1);
  ASSERT_EQ(math.missing.size(), 1U);
  EXPECT_THAT(math.missing[0].ranks, ElementsAre(1));
  EXPECT_THAT(math.divergence, IsEmpty());
  EXPECT_EQ(math.counted_elements, 12U);
}

TEST_F(ShardedStep, a_tensor_unused_by_all_sources_is_neither_read_nor_written) {
  ShardedJob four = job(4, 1, {twice_scattered({6, 10}, 1, {6, 4}), replicated({5}, {{0, 1, 2, 3}})});
  four.load();
  four.fill(random_);
  EXPECT_THAT(expect_step(four, 1, {{0, 0}, {0, 1}, {0, 2}, {0, 3}}, 0.1).absent, ElementsAre(0));
  EXPECT_NE(four.output(0, 0, 1)[0], 0);
}

TEST_F(ShardedStep, one_input_alone_is_copied_and_divided) {
  for (const double divisor : {1.0, 2.0}) {
    ShardedTensor in_place = replicated({9}, {{0}, {1}});  // nothing is reduced: the divisor has no stage
    in_place.parts[0].sums = {sum_to({0}, {0}), sum_to({1}, {1})};
    ShardedTensor apart = scattered({40, 5}, 1, {5}, {0});
    ShardedJob two = job(2, divisor, {in_place, apart});
    two.load();
    two.fill(random_);
    for (std::uint64_t i = 0; i < 9; ++i) {
      two.set(1, 0, i, two.input(0, 0, i));
    }
    expect_step(two, 1);
    EXPECT_EQ(two.output(0, 1, 1)[0], two.input(0, 1, 0) / divisor);
  }
}

TEST_F(ShardedStep, a_lone_input_in_place_is_not_written) {
  ShardedJob one = job(1, 1, {replicated({3}, {{0}}), scattered({3}, 0, {3}, {0})});
  one.load();
  const std::uint32_t signalling = 0x7fa0'0001U;
  for (std::uint32_t tensor = 0; tensor < 2; ++tensor) {
    std::memcpy(one.arenas[0].data() + one.arena(0).input[tensor], &signalling, 4);
  }
  WorkerPool pool(1, "test");
  const std::atomic<bool> cancel{false};
  reduce_bucket(*one.plan, {1, 1, 0, {}, false}, HostPasses(pool, cancel));
  std::uint32_t bits[2] = {};
  std::memcpy(&bits[0], one.arenas[0].data() + one.arena(0).output[0], 4);
  std::memcpy(&bits[1], one.arenas[0].data() + one.arena(0).output[1], 4);
  EXPECT_EQ(bits[0], signalling);
  EXPECT_EQ(bits[1], 0x7fc0'0000U);  // a copy holds the canonical NaN
}

/// A tensor on ranks 0 and 1 tied to a copy on ranks 1 and 2, so that rank 1 holds both.
ShardedTensor tied_pair(const Index& shape) {
  ShardedTensor tensor;
  tensor.shape = shape;
  tensor.in_place = true;
  tensor.copies = 1;
  tensor.parts = {{whole_box(shape), {{{{0, 0}, {1, 0}, {1, 1}, {2, 1}}, {{0, 0}, {1, 0}, {1, 1}, {2, 1}}}}}};
  return tensor;
}

TEST_F(ShardedStep, tied_copies_are_summed_together_and_counted_once) {
  expect_steps(job(3, 2, {tied_pair({17'000}), replicated({8}, {{0, 1, 2}})}));
  expect_steps(job(3, 2, {tied_pair({40})}), {{0, 0}, {1, 1}});  // of rank 1 the copy is unused
}

TEST_F(ShardedStep, a_copy_is_absent_with_its_tensor) {
  ShardedJob three = job(3, 1, {tied_pair({40}), replicated({8}, {{0, 1, 2}})});
  three.load();
  three.fill(random_);
  EXPECT_THAT(expect_step(three, 1, {{0, 0}, {0, 1}, {1, 1}, {1, 2}}, 0.1).absent, ElementsAre(0, 1));
  three.fill(random_);
  EXPECT_THAT(expect_step(three, 2, {{0, 0}, {0, 1}, {1, 1}}, 0.1).absent, IsEmpty());
}

TEST_F(ShardedStep, tied_copies_can_be_scattered) {
  ShardedTensor tensor;
  tensor.shape = {6, 8};
  tensor.copies = 2;
  for (std::uint32_t k = 0; k < 2; ++k) {
    tensor.parts.push_back(
        {slice(tensor.shape, 1, {5, 3}, k),
         {{{{0, 0}, {1, 0}, {2, 1}, {3, 1}, {0, 2}, {1, 2}}, {{k, 0}, {2 + k, 1}, {k, 2}}}}}
    );
  }
  expect_steps(job(4, 4, {tensor}));
  expect_steps(job(4, 4, {tensor}), {{0, 0}, {2, 0}, {1, 3}});
}

TEST_F(ShardedStep, nonfinite_inputs_are_those_of_the_memory_that_held_them) {
  ShardedTensor tied = tied_pair({4, 40});
  tied.in_place = false;
  tied.parts.clear();
  for (std::uint32_t k = 0; k < 2; ++k) {
    tied.parts.push_back({slice(tied.shape, 1, {30, 10}, k), {{{{0, 0}, {1, 0}, {1, 1}, {2, 1}}, {{k, 0}, {1 + k, 1}}}}}
    );
  }
  ShardedJob three = job(3, 1, {tied});
  three.load();
  three.fill(random_);
  three.set(0, 0, 5, kInfinity);
  three.set(1, 1, 5, std::nan(""));
  three.set(1, 1, 155, -kInfinity);
  WorkerPool pool(2, "test");
  const std::atomic<bool> cancel{false};
  reduce_bucket(*three.plan, {1, 1, 0, {}, false}, HostPasses(pool, cancel));
  const StepMath math = finish_step(*three.plan, {1, 1, 1.0, {plan::ClipRule{}}, true}, HostPasses(pool, cancel));
  EXPECT_EQ(math.nonfinite_total, 2U);
  ASSERT_EQ(math.nonfinite.size(), 2U);
  EXPECT_EQ(math.nonfinite[0].count, 2U);
  EXPECT_THAT(math.nonfinite[0].inputs, ElementsAre(Pair(0, 1U)));
  EXPECT_EQ(math.nonfinite[1].tensor, 1U);
  EXPECT_EQ(math.nonfinite[1].count, 0U);  // counted with the tensor it is a copy of
  EXPECT_THAT(math.nonfinite[1].inputs, ElementsAre(Pair(1, 2U)));
}

TEST_F(ShardedStep, a_later_clip_multiplies_every_output) {
  ShardedJob four = job(4, 1, {twice_scattered({6, 10}, 1, {6, 4})});
  four.load();
  four.fill(random_);
  WorkerPool pool(2, "test");
  const std::atomic<bool> cancel{false};
  ShardedOracle oracle(four, {});
  reduce_bucket(*four.plan, {1, 1, 0, {}, false}, HostPasses(pool, cancel));
  (void)finish_step(*four.plan, {1, 1, 1.0, {plan::ClipRule{}}, false}, HostPasses(pool, cancel));
  plan::ClipOutcome quarter;
  quarter.multiply = true;
  quarter.multiplier = 0.25;
  scale_gradients(*four.plan, {1, 1, {quarter}}, HostPasses(pool, cancel));
  oracle.multiply({quarter});
  EXPECT_TRUE(four.arenas == oracle.arenas);
}

TEST_F(ShardedStep, bits_do_not_depend_on_the_threads) {
  std::vector<std::vector<std::byte>> memory;
  double norm = 0;
  for (const int threads : {1, 3}) {
    ShardedJob three = job(3, 3, {scattered({301, 205}, 1, {100, 100, 5}, {2, 0, 1}), tied_pair({40'000})});
    three.load(static_cast<std::size_t>(threads));
    std::mt19937_64 random(3);
    three.fill(random);
    WorkerPool pool(threads, "test");
    const std::atomic<bool> cancel{false};
    reduce_bucket(*three.plan, {1, 1, 0, {}, false}, HostPasses(pool, cancel));
    plan::ClipRule rule;
    rule.norm_dtype = plan::DType::Float64;
    const StepMath math = finish_step(*three.plan, {1, 1, 1.0, {rule}, true}, HostPasses(pool, cancel));
    EXPECT_TRUE(memory.empty() || memory == three.arenas);
    EXPECT_TRUE(norm == 0 || norm == math.norm);
    memory = three.arenas;
    norm = math.norm;
  }
}

}  // namespace
}  // namespace gradsync::device
