#pragma once
// Steps of one job over several engines, with two tensors whose rows the test writes.

#include "unit/engine/peers/steps/linked_engines.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {

class StepsOverNodes : public testing::Test {
 protected:
  using Calls = std::vector<std::shared_ptr<LinkedEngines::Call>>;

  static plan::TensorDeclaration tensor(const std::string& name, std::int64_t numel, plan::Placement placement) {
    plan::TensorDeclaration declaration;
    declaration.name = name;
    declaration.shape = declaration.local_shape = {numel};
    declaration.mesh = "default";
    declaration.placements = {std::move(placement)};
    return declaration;
  }

  /// 'w' is cut over all ranks, 'b' is on each.
  static plan::RankDeclaration declaration(std::int64_t world) {
    plan::RankDeclaration all;
    all.options.data_path = plan::DataPath::Stats;
    all.options.clip = {{"all", {1.0, plan::ZeroRule::Refuse}}};
    plan::TensorDeclaration w = tensor("w", 2 * world, {{"dp"}, plan::Shard{0}});
    w.local_shape = {2};
    std::vector<plan::TensorDeclaration> tensors{w, tensor("b", 2, {{"dp"}, plan::Replicate{}})};
    all.tensors = std::move(tensors);
    return all;
  }

  /// The row of a gradient with two equal values.
  static device::StatsRow row_of(double value) {
    device::StatsRow row;
    row.power_sum = 2 * value * value;
    row.maximum = std::abs(value);
    return row;
  }

  void start(LinkedEngines& all, const std::optional<plan::RankDeclaration>& other = {}) {
    for (std::int64_t rank = 0; rank < all.world(); ++rank) {
      all.declare(rank, other.value_or(declaration(all.world())));
    }
    all.pump();
    for (std::int64_t rank = 0; rank < all.world(); ++rank) {
      ASSERT_TRUE(all.declared(rank)) << rank << ": "
                                      << (all.refusal(rank) ? all.refusal(rank)->message : "still waits");
    }
  }

  /// Rank r has r + 1 in its part of 'w', and 0.5 in 'b'.
  static void write(LinkedEngines& all) {
    for (std::int64_t rank = 0; rank < all.world(); ++rank) {
      all.write(rank, 0, row_of(static_cast<double>(rank + 1)));
      all.write(rank, 1, row_of(0.5));
    }
  }

  static double norm_of(std::int64_t world) {
    double sum = 2 * 0.25;
    for (std::int64_t rank = 0; rank < world; ++rank) {
      sum += 2 * static_cast<double>((rank + 1) * (rank + 1));
    }
    return std::sqrt(sum);
  }

  static Calls finish(LinkedEngines& all, std::int64_t step, FinishRequest request = {}) {
    Calls calls;
    for (std::int64_t rank = 0; rank < all.world(); ++rank) {
      calls.push_back(all.finish(rank, step, request));
    }
    all.pump();
    return calls;
  }

  static void expect_done(const Calls& calls, double norm) {
    for (const auto& call : calls) {
      ASSERT_TRUE(call->report) << (call->error ? call->error->message : "still waits");
      EXPECT_EQ(call->calls, 1);
      EXPECT_EQ(call->report->norm, static_cast<float>(norm));
      EXPECT_EQ(call->report->coefficient, calls.front()->report->coefficient);
      EXPECT_EQ(call->report->policy_digest, calls.front()->report->policy_digest);
    }
  }

  static void expect_failed(const Calls& calls, ErrorCode code, const std::string& said) {
    for (const auto& call : calls) {
      ASSERT_TRUE(call->error) << "still waits, or done";
      EXPECT_EQ(call->error->code, code) << call->error->message;
      EXPECT_THAT(call->error->message, testing::HasSubstr(said));
    }
  }
};

}  // namespace gradsync::engine
