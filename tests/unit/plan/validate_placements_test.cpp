#include "declarations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace gradsync::plan {
namespace {

using ::testing::HasSubstr;

const std::vector<Mesh> kDpTpCp{mesh({{"dp", 2}, {"tp", 2}, {"cp", 1}})};

Error refused_placements(std::vector<Placement> placements) {
  return refused(declaration({tensor("w", {8, 4}, std::move(placements))}), kDpTpCp);
}

TEST(ValidatePlacements, every_axis_that_counts_needs_one) {
  EXPECT_TRUE(validate_declaration(declaration({tensor("w", {4}, {partial({"dp", "tp"})})}), kDpTpCp).has_value())
      << "an axis of size 1 may be left out";
  const Error error = refused_placements({partial({"dp"})});
  EXPECT_EQ(error.code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(error.path, "tensors[0].placements");
  EXPECT_EQ(error.tensor, "w");
  EXPECT_THAT(error.message, HasSubstr("axis 'tp' of size 2 has no placement"));
}

TEST(ValidatePlacements, an_unknown_axis_is_answered_with_the_nearest) {
  const Error error = refused_placements({partial({"dp", "ttp"})});
  EXPECT_EQ(error.path, "tensors[0].placements[0].axes[1]");
  EXPECT_THAT(error.message, HasSubstr("axis 'ttp' is not in mesh 'dense' (dp, tp, cp)"));
  EXPECT_EQ(error.hint, "did you mean 'tp'?");
}

TEST(ValidatePlacements, an_axis_is_placed_once) {
  EXPECT_EQ(refused_placements({partial({"dp"}), replicate({"tp", "dp"})}).path, "tensors[0].placements[1].axes[1]");
  EXPECT_EQ(refused_placements({partial({"dp", "dp"})}).path, "tensors[0].placements[0].axes[1]");
  EXPECT_EQ(refused_placements({partial({})}).path, "tensors[0].placements[0].axes");
}

TEST(ValidatePlacements, a_shard_names_a_dim_of_the_shape) {
  for (const std::int64_t dim : {std::int64_t{-1}, std::int64_t{2}, std::numeric_limits<std::int64_t>::max()}) {
    const Error shard = refused_placements({partial({"dp"}), {{"tp"}, Shard{dim}}});
    EXPECT_EQ(shard.code, ErrorCode::InvalidDeclaration);
    EXPECT_EQ(shard.path, "tensors[0].placements[1].dim");
    EXPECT_NE(shard.message.find("of axis 'tp' is not a dim of shape"), std::string::npos) << shard.message;
    const Error to = refused_placements({{{"dp"}, Partial{ReduceOp::Mean, Shard{dim}}}, replicate({"tp"})});
    EXPECT_EQ(to.code, ErrorCode::InvalidDeclaration);
    EXPECT_EQ(to.path, "tensors[0].placements[0].to.dim");
  }
}

TEST(ValidatePlacements, a_scalar_cannot_be_sharded) {
  const TensorDeclaration scalar = tensor("temperature", {}, {partial({"dp"}), {{"tp"}, Shard{0}}});
  const Error shard = refused(declaration({scalar}), kDpTpCp);
  EXPECT_EQ(shard.code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(shard.path, "tensors[0].placements[1].dim");
  EXPECT_EQ(shard.tensor, "temperature");
  EXPECT_THAT(shard.message, HasSubstr("shard dim 0 of axis 'tp' is not a dim of shape []"));
  EXPECT_EQ(shard.hint, "a scalar cannot be sharded");

  const Placement scattered{{"dp", "tp"}, Partial{ReduceOp::Mean, Shard{0}}};
  const Error to = refused(declaration({tensor("temperature", {}, {scattered})}), kDpTpCp);
  EXPECT_EQ(to.path, "tensors[0].placements[0].to.dim");
  EXPECT_THAT(to.message, HasSubstr("of axis 'dp+tp' is not a dim of shape []"));
  EXPECT_EQ(to.hint, "a scalar cannot be sharded");
}

TEST(ValidatePlacements, coordinates_of_only_are_on_the_flattened_axis) {
  EXPECT_EQ(refused_placements({{{"dp", "tp"}, Only{{3, 4}}}}).path, "tensors[0].placements[0].at[1]");
  EXPECT_EQ(refused_placements({{{"dp", "tp"}, Only{{-1}}}}).path, "tensors[0].placements[0].at[0]");
  EXPECT_EQ(refused_placements({{{"dp", "tp"}, Only{{1, 1}}}}).path, "tensors[0].placements[0].at[1]");
  EXPECT_EQ(refused_placements({{{"dp", "tp"}, Only{}}}).path, "tensors[0].placements[0].at");
  EXPECT_EQ(refused_placements({{{"dp", "tp"}, Only{{3}}}}).code, ErrorCode::InternalError) << "is accepted";
}

TEST(ValidatePlacements, a_divisor_is_a_positive_number_and_excludes_means) {
  TensorDeclaration w = tensor("w", {4}, {partial({"dp", "tp"}, ReduceOp::Sum)});
  for (const double divisor :
       {0.0, -2.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e300}) {
    w.divisor = divisor;
    EXPECT_EQ(refused(declaration({w}), kDpTpCp).path, "tensors[0].divisor") << divisor;
  }
  w.divisor = 4;
  EXPECT_TRUE(validate_declaration(declaration({w}), kDpTpCp).has_value());
  w.placements = {partial({"dp", "tp"}, ReduceOp::Mean)};
  const Error error = refused(declaration({w}), kDpTpCp);
  EXPECT_EQ(error.path, "tensors[0].divisor");
  EXPECT_THAT(error.message, HasSubstr("mean over dp+tp"));
  w.placements = {replicate({"dp", "tp"})};
  EXPECT_TRUE(validate_declaration(declaration({w}), kDpTpCp).has_value()) << "applied even when no stage is left";
  w.dtype = DType::Float64;
  w.divisor = 1e300;
  EXPECT_TRUE(validate_declaration(declaration({w}), kDpTpCp).has_value());
}

RankDeclaration reduced(TensorDeclaration tensor) {
  RankDeclaration all = declaration({std::move(tensor)});
  all.options.data_path = DataPath::Stats;
  return all;
}

TEST(ValidatePlacements, a_split_order_names_all_sharding_axes_once_and_flattened_ones_together) {
  TensorDeclaration w = tensor("w", {4}, {{{"dp"}, Shard{0}}, {{"tp"}, Shard{0}}});
  const auto path = [&w](std::vector<std::string> order) {
    w.split_order = std::move(order);
    return refused(reduced(w), kDpTpCp).path;
  };
  EXPECT_EQ(path({"tp", "cp"}), "tensors[0].split_order[1]");
  EXPECT_EQ(path({"tp", "tp"}), "tensors[0].split_order[1]");
  EXPECT_EQ(path({"pp"}), "tensors[0].split_order[0]");
  EXPECT_EQ(path({"tp"}), "tensors[0].split_order") << "dp is missing";
  w.split_order = {"tp", "dp"};
  EXPECT_TRUE(validate_declaration(reduced(w), kDpTpCp).has_value());
  w.placements = {{{"dp", "tp"}, Shard{0}}};
  EXPECT_EQ(path({"tp", "dp"}), "tensors[0].split_order");
  w.split_order = {"dp", "tp"};
  EXPECT_TRUE(validate_declaration(reduced(w), kDpTpCp).has_value());
  w.placements = {{{"dp"}, Shard{0}}, replicate({"tp"})};
  EXPECT_EQ(path({"dp", "tp"}), "tensors[0].split_order[1]") << "tp does not shard it";
}

TEST(ValidatePlacements, what_nobody_reduces_or_divides_is_refused_on_the_stats_path) {
  TensorDeclaration w = tensor("w", {4}, {partial({"dp"}), {{"tp"}, Shard{0}}});
  w.local_shape = {2};
  EXPECT_EQ(refused(reduced(w), kDpTpCp).path, "tensors[0].placements[0]");
  w.placements[0] = replicate({"dp"});
  EXPECT_TRUE(validate_declaration(reduced(w), kDpTpCp).has_value());
  w.divisor = 2;
  EXPECT_EQ(refused(reduced(w), kDpTpCp).path, "tensors[0].divisor");
  w.divisor.reset();
  RankDeclaration all = reduced(w);
  all.options.accumulate = 2;
  EXPECT_EQ(refused(all, kDpTpCp).path, "options.accumulate");
  all.options.accumulate = 1;
  all.tensors.own().clear();
  EXPECT_TRUE(validate_declaration(all, kDpTpCp).has_value()) << "a rank may hold nothing";
}

// ---- what sync scatters is cut last

Error refused_order(std::vector<Placement> placements, std::vector<std::string> split_order) {
  TensorDeclaration w = tensor("w", {8, 4}, std::move(placements));
  w.local_shape = {4, 4};
  w.split_order = std::move(split_order);
  return refused(declaration({w}), kDpTpCp);
}

TEST(ValidatePlacements, sync_scatters_what_was_there_before) {
  const std::vector<Placement> fsdp_over_tp{{{"dp"}, Partial{ReduceOp::Mean, Shard{0}}}, {{"tp"}, Shard{0}}};
  EXPECT_EQ(refused_order(fsdp_over_tp, {"tp", "dp"}).code, ErrorCode::InternalError) << "is accepted";
  EXPECT_EQ(refused_order(fsdp_over_tp, {}).code, ErrorCode::InternalError);
  const Error error = refused_order(fsdp_over_tp, {"dp", "tp"});
  EXPECT_EQ(error.code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(error.path, "tensors[0].split_order");
  EXPECT_THAT(error.message, HasSubstr("'dp: partial(mean) → shard(0)' before 'tp: shard(0)'"));
}

TEST(ValidatePlacements, an_axis_of_one_rank_scatters_nothing) {
  const auto valid = [](std::int64_t cp) {
    TensorDeclaration w = tensor(
        "w", {8}, {{{"dp_shard"}, Partial{ReduceOp::Mean, Shard{0}}}, {{"cp"}, Partial{ReduceOp::Mean, Shard{0}}}}
    );
    w.split_order = {"cp", "dp_shard"};
    return validate_declaration(declaration({w}), {mesh({{"dp_shard", 2}, {"cp", cp}})}).has_value();
  };
  EXPECT_TRUE(valid(2));
  EXPECT_TRUE(valid(1));
}

TEST(ValidatePlacements, stages_scatter_in_their_order) {
  const std::vector<Placement> twice{
      {{"dp"}, Partial{ReduceOp::Mean, Shard{0}}}, {{"tp"}, Partial{ReduceOp::Sum, Shard{0}}}};
  TensorDeclaration w = tensor("w", {8, 4}, twice);
  w.split_order = {"tp", "dp"};  // tp is reduced first
  EXPECT_TRUE(validate_declaration(declaration({w}), kDpTpCp).has_value());
  w.split_order = {"dp", "tp"};
  EXPECT_EQ(refused(declaration({w}), kDpTpCp).path, "tensors[0].split_order");
}

}  // namespace
}  // namespace gradsync::plan
