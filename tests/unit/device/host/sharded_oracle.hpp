#pragma once
// What a step of a ShardedJob must leave in memory and in its report.

#include "device/host/host_passes.hpp"
#include "device/host/worker_pool.hpp"
#include "device/step/bucket_step.hpp"
#include "device/step/step_finish.hpp"
#include "unit/device/sharded_job.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <map>

namespace gradsync::device {

using UnusedSet = std::set<std::pair<std::uint32_t, std::uint32_t>>;  ///< (memory's tensor, rank)

class ShardedOracle {
 public:
  using Ranks = std::set<std::int64_t>;

  /// From the inputs as they are before the step.
  ShardedOracle(const ShardedJob& job, const UnusedSet& unused) : arenas(job.arenas), job_(job), unused_(unused) {
    for (std::uint32_t tensor = 0; tensor < job.specs.size(); ++tensor) {
      if (job.layout.tensors[tensor].parts != 0) {
        add(tensor);
      }
    }
  }

  /// Multiplies what was summed, as a clip does.
  void multiply(const std::vector<plan::ClipOutcome>& outcomes) {
    for (const auto& [place, values] : summed_) {
      const auto [rank, memory] = place;
      const plan::ClipOutcome& outcome = outcomes[job_.layout.tensors[memory].clip_group];
      for (std::uint64_t i = 0; outcome.multiply && i < values.size(); ++i) {
        const double product = job_.dtype_of(memory) == plan::DType::Float64
                                   ? values[i] * outcome.multiplier
                                   : double{static_cast<float>(values[i]) * static_cast<float>(outcome.multiplier)};
        job_.write(arenas[rank], job_.arena(rank).output[memory], memory, i, product);
      }
    }
  }

  [[nodiscard]] double norm() const {
    const double p = job_.layout.norm_type;
    return std::isinf(p) ? maximum : static_cast<double>(std::pow(powers, 1 / static_cast<long double>(p)));
  }

  std::vector<std::vector<std::byte>> arenas;  ///< afterwards, every byte
  std::vector<std::uint32_t> absent;
  std::map<std::uint32_t, Ranks> missing;
  std::map<std::uint32_t, Ranks> divergence;        ///< also where bits differ
  std::map<std::uint32_t, Ranks> without_gradient;  ///< that of sums without a gradient, beside some with one
  std::uint64_t counted_elements = 0;
  long double powers = 0;
  double maximum = 0;

 private:
  [[nodiscard]] bool contributes(std::uint32_t tensor, const LaneMember& source) const {
    return unused_.count({tensor + source.copy, source.rank}) == 0;
  }

  [[nodiscard]] bool contributed(std::uint32_t tensor, const LaneSum& sum) const {
    return std::any_of(sum.sources.begin(), sum.sources.end(), [&](const LaneMember& source) {
      return contributes(tensor, source);
    });
  }

  void add(std::uint32_t tensor) {
    const ShardedTensor& spec = job_.specs[tensor];
    bool present = false;
    for (const ShardPart& part : spec.parts) {
      for (const LaneSum& sum : part.sums) {
        present = present || contributed(tensor, sum);
      }
    }
    if (!present) {
      for (std::uint32_t memory = tensor; memory <= tensor + spec.copies; ++memory) {
        absent.push_back(memory);
      }
      return;
    }
    for (const ShardPart& part : spec.parts) {
      add_part(tensor, part);
    }
  }

  void add_part(std::uint32_t tensor, const ShardPart& part) {
    if (volume(part.box.extents()) == 0) {
      return;
    }
    std::optional<std::vector<double>> counted;
    std::vector<Ranks> without;
    for (const LaneSum& sum : part.sums) {
      const std::vector<double> values = values_of(tensor, part.box, sum);
      const bool some = contributed(tensor, sum);
      Ranks ranks;
      for (const LaneMember& destination : sum.destinations) {
        const std::uint32_t memory = tensor + destination.copy;
        ranks.insert(destination.rank);
        for (std::uint64_t i = 0; i < values.size(); ++i) {
          job_.write(arenas[destination.rank], job_.arena(destination.rank).output[memory], memory, i, values[i]);
        }
        if (some) {
          summed_[{destination.rank, memory}] = values;
        }
      }
      if (!some) {
        missing[tensor].insert(ranks.begin(), ranks.end());
        without.push_back(ranks);
      } else if (!counted) {
        counted = values;
        count(values);
      } else if (*counted != values) {
        divergence[tensor].insert(ranks.begin(), ranks.end());
      }
    }
    for (const Ranks& ranks : without) {
      if (counted) {
        divergence[tensor].insert(ranks.begin(), ranks.end());
        without_gradient[tensor].insert(ranks.begin(), ranks.end());
      }
    }
  }

  void count(const std::vector<double>& values) {
    counted_elements += values.size();
    const double p = job_.layout.norm_type;
    for (const double value : values) {
      maximum = std::max(maximum, std::abs(value));
      powers += std::isinf(p) ? 0 : p == 2 ? value * value : std::pow(std::abs(value), p);
    }
  }

  [[nodiscard]] std::vector<double> values_of(std::uint32_t tensor, const ShardBox& box, const LaneSum& sum) const {
    const Index& shape = job_.specs[tensor].shape;
    const double divisor = job_.layout.buckets[job_.layout.tensors[tensor].bucket].divisor;
    std::vector<LaneMember> sources;
    for (const LaneMember& source : sum.sources) {
      if (contributes(tensor, source)) {
        sources.push_back(source);
      }
    }
    std::vector<double> values;
    Index at = box.begin;
    for (std::uint64_t n = volume(box.extents()); n > 0; --n) {
      std::uint64_t element = 0;
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        element = element * shape[dim] + at[dim];
      }
      double value = 0;
      for (const LaneMember& source : sources) {
        value += job_.input(source.rank, tensor + source.copy, element);
      }
      values.push_back(value / divisor);
      for (std::size_t dim = shape.size(); dim-- > 0 && ++at[dim] == box.end[dim];) {
        at[dim] = box.begin[dim];
      }
    }
    return values;
  }

  const ShardedJob& job_;
  const UnusedSet& unused_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<double>> summed_;  ///< by rank and memory
};

template <typename Finding>
std::map<std::uint32_t, ShardedOracle::Ranks> by_tensor(const std::vector<Finding>& findings) {
  std::map<std::uint32_t, ShardedOracle::Ranks> found;
  for (const Finding& finding : findings) {
    found[finding.tensor].insert(finding.ranks.begin(), finding.ranks.end());
    EXPECT_TRUE(std::is_sorted(finding.ranks.begin(), finding.ranks.end()));
    EXPECT_EQ(found[finding.tensor].size(), finding.ranks.size()) << "a rank named twice";
  }
  return found;
}

/// A whole step on the lane's functions, compared with the oracle: every byte of every arena, and the report.
inline StepMath expect_step(
    ShardedJob& job, Tag tag, const UnusedSet& unused = {}, std::optional<double> max_norm = std::nullopt
) {
  static WorkerPool pool(2, "test");
  const std::atomic<bool> cancel{false};
  ShardedOracle oracle(job, unused);
  for (std::uint32_t bucket = 0; bucket < job.layout.buckets.size(); ++bucket) {
    ReduceBucket command{1, tag, bucket, {}, true};
    command.defer = (tag + bucket) % 2 == 0;
    for (const auto& [tensor, rank] : unused) {
      if (job.layout.tensors[tensor].bucket == bucket) {
        command.unused.push_back({tensor, rank});
      }
    }
    reduce_bucket(*job.plan, command, HostPasses(pool, cancel));
  }
  plan::ClipRule rule;
  rule.norm_dtype = plan::DType::Float64;
  rule.max_norm = max_norm;
  const std::vector<plan::ClipRule> rules(job.layout.clip_groups, rule);
  StepMath math = finish_step(*job.plan, {1, tag, 1.0, rules, true}, HostPasses(pool, cancel));
  oracle.multiply(math.groups);
  EXPECT_TRUE(job.arenas == oracle.arenas) << "memory";
  EXPECT_NEAR(math.norm, oracle.norm(), 1e-12 * oracle.norm());
  EXPECT_EQ(math.counted_elements, oracle.counted_elements);
  EXPECT_EQ(math.absent, oracle.absent);
  EXPECT_EQ(by_tensor(math.missing), oracle.missing);
  EXPECT_EQ(by_tensor(math.divergence), oracle.divergence);
  EXPECT_TRUE(math.nonfinite.empty());
  return math;
}

}  // namespace gradsync::device
