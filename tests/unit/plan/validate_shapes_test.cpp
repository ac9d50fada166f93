#include "declarations.hpp"
#include "plan/limits.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace gradsync::plan {
namespace {

using ::testing::HasSubstr;

const std::vector<Mesh> kDp2{mesh({{"dp", 2}})};

TEST(ValidateShapes, plain_data_parallel_tensors_are_valid) {
  TensorDeclaration scalar = tensor("scalar", {});
  TensorDeclaration empty = tensor("empty", {0, 3});
  TensorDeclaration placed = tensor("placed", {2, 3});
  placed.local_offset = {0, 0};
  EXPECT_TRUE(validate_declaration(declaration({scalar, empty, placed}), kDp2).has_value());
}

TEST(ValidateShapes, a_rank_may_hold_nothing) { EXPECT_TRUE(validate_declaration(declaration({}), kDp2).has_value()); }

TEST(ValidateShapes, names_are_there_and_not_too_long) {
  EXPECT_EQ(refused(declaration({tensor("a", {1}), tensor("", {1})}), kDp2).path, "tensors[1].name");
  EXPECT_EQ(refused(declaration({tensor(std::string(kMaxNameBytes + 1, 'x'), {1})}), kDp2).path, "tensors[0].name");
  EXPECT_TRUE(validate_declaration(declaration({tensor(std::string(kMaxNameBytes, 'x'), {1})}), kDp2).has_value());
  TensorDeclaration grouped = tensor("a", {1});
  grouped.clip_group = "";
  EXPECT_EQ(refused(declaration({grouped}), kDp2).path, "tensors[0].clip_group");
}

TEST(ValidateShapes, the_first_name_declared_twice_is_named_with_both_places) {
  const Error error = refused(
      declaration({tensor("a", {1}), tensor("b", {1}), tensor("c", {1}), tensor("b", {1}), tensor("a", {1})}), kDp2
  );
  EXPECT_EQ(error.code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(error.path, "tensors[3].name");
  EXPECT_EQ(error.tensor, "b");
  EXPECT_THAT(error.message, HasSubstr("tensors 1 and 3"));
}

TEST(ValidateShapes, negative_sizes_are_named) {
  EXPECT_EQ(refused(declaration({tensor("a", {2, -1})}), kDp2).path, "tensors[0].shape[1]");
  TensorDeclaration local = tensor("a", {2});
  local.local_shape = {-2};
  EXPECT_EQ(refused(declaration({local}), kDp2).path, "tensors[0].local_shape[0]");
}

TEST(ValidateShapes, sizes_beyond_2_to_the_62_bytes_are_refused) {
  const std::int64_t huge = std::int64_t{1} << 31;
  const Error error = refused(declaration({tensor("a", {huge, huge})}), kDp2);
  EXPECT_EQ(error.path, "tensors[0].shape");
  EXPECT_THAT(error.message, HasSubstr("2^62"));
  EXPECT_EQ(
      refused(declaration({tensor("a", {std::numeric_limits<std::int64_t>::max(), 2})}), kDp2).path, "tensors[0].shape"
  );
  const std::int64_t half = std::int64_t{1} << 59;
  EXPECT_EQ(refused(declaration({tensor("a", {half}), tensor("b", {half})}), kDp2).path, "tensors");
}

TEST(ValidateShapes, the_local_shape_has_the_dims_of_the_shape) {
  TensorDeclaration local = tensor("a", {2, 3});
  local.local_shape = {6};
  EXPECT_EQ(refused(declaration({local}), kDp2).path, "tensors[0].local_shape");
  TensorDeclaration offset = tensor("a", {2, 3});
  offset.local_offset = {0};
  EXPECT_EQ(refused(declaration({offset}), kDp2).path, "tensors[0].local_offset");
}

TEST(ValidateShapes, a_replicated_tensor_is_held_whole) {
  TensorDeclaration part = tensor("wq", {512, 512});
  part.local_shape = {512, 256};
  const Error error = refused(declaration({tensor("a", {1}), part}), kDp2);
  EXPECT_EQ(error.code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(error.path, "tensors[1].local_shape[1]");
  EXPECT_EQ(error.tensor, "wq");
  EXPECT_THAT(error.message, HasSubstr("local_shape[1] is 256 and shape[1] is 512"));
  EXPECT_THAT(error.message, HasSubstr("no placement shards dim 1 (dp: partial(mean)"));

  part.local_shape = {512, 513};
  EXPECT_EQ(refused(declaration({part}), kDp2).path, "tensors[0].local_shape[1]");
}

TEST(ValidateShapes, a_shard_lies_inside_the_logical_shape) {
  TensorDeclaration moved = tensor("a", {4});
  moved.local_offset = {1};
  EXPECT_EQ(refused(declaration({moved}), kDp2).path, "tensors[0].local_offset[0]");
  moved.local_offset = {-1};
  EXPECT_EQ(refused(declaration({moved}), kDp2).path, "tensors[0].local_offset[0]");
  moved.local_offset = {std::numeric_limits<std::int64_t>::max()};
  EXPECT_EQ(refused(declaration({moved}), kDp2).path, "tensors[0].local_offset[0]");

  TensorDeclaration shard = tensor("a", {4}, {{{"dp"}, Shard{0}}});
  shard.local_shape = {5};
  EXPECT_EQ(refused(declaration({shard}), kDp2).path, "tensors[0].local_shape[0]");
}

TEST(ValidateShapes, an_unknown_mesh_is_answered_with_the_nearest) {
  TensorDeclaration lost = tensor("a", {4});
  lost.mesh = "dence";
  const Error error = refused(declaration({lost}), kDp2);
  EXPECT_EQ(error.path, "tensors[0].mesh");
  EXPECT_THAT(error.message, HasSubstr("'dence'"));
  EXPECT_EQ(error.hint, "did you mean 'dense'?");
}

}  // namespace
}  // namespace gradsync::plan
