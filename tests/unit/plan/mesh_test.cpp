#include "plan/mesh/mesh.hpp"

#include "declarations.hpp"
#include "plan/mesh/mesh_difference.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace gradsync::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Error refused_mesh(const std::vector<Mesh>& meshes, std::int64_t world_size) {
  const auto result = validate_meshes(meshes, world_size);
  return result ? make_error(ErrorCode::InternalError, "the meshes were accepted") : result.error();
}

TEST(Mesh, numbers_ranks_row_major_with_the_last_axis_fastest) {
  const Mesh dense = mesh({{"pp", 2}, {"dp", 3}, {"tp", 2}});
  EXPECT_EQ(dense.size(), 12);
  EXPECT_THAT(dense.coordinates(0), ElementsAre(0, 0, 0));
  EXPECT_THAT(dense.coordinates(1), ElementsAre(0, 0, 1));
  EXPECT_THAT(dense.coordinates(2), ElementsAre(0, 1, 0));
  EXPECT_THAT(dense.coordinates(11), ElementsAre(1, 2, 1));
}

TEST(Mesh, the_first_difference_of_two_lists_is_named_with_both_values) {
  const std::vector<Mesh> first{mesh({{"dp", 4}, {"tp", 2}}), mesh({{"ep", 8}}, "experts")};
  EXPECT_FALSE(difference_of(first, first));
  const auto differs = [&](auto change) {
    std::vector<Mesh> other = first;
    change(other);
    const auto found = difference_of(first, other);
    return found ? found->path + ": " + found->what + " is " + found->other + ", was " + found->first : "equal";
  };
  using Meshes = std::vector<Mesh>;
  EXPECT_EQ(
      differs([](Meshes& m) {
        m[0].axes = {{"dp", 2}, {"tp", 4}};
      }),
      "meshes[0].axes[0].size: the size of axis 'dp' of mesh 'dense' is 2, was 4"
  );
  EXPECT_EQ(
      differs([](Meshes& m) {
        m[0].axes = {{"tp", 2}, {"dp", 4}};
      }),
      "meshes[0].axes: the list of axes of mesh 'dense' is [tp, dp], was [dp, tp]"
  );
  EXPECT_EQ(
      differs([](Meshes& m) {
        m[0].sync_order = {"tp", "dp"};
      }),
      "meshes[0].sync_order: the sync_order of mesh 'dense' is [tp, dp], was []"
  );
  EXPECT_EQ(differs([](Meshes& m) { m.pop_back(); }), "meshes: the list of meshes is [dense], was [dense, experts]");
}

TEST(Mesh, finds_axes_by_name) {
  const Mesh dense = mesh({{"dp", 3}, {"tp", 2}});
  EXPECT_EQ(dense.axis_index("tp"), 1U);
  EXPECT_EQ(dense.axis_index("t"), std::nullopt);
  EXPECT_EQ(dense.axis_names(), "dp, tp");
}

TEST(Mesh, several_meshes_over_the_same_ranks_are_fine) {
  EXPECT_TRUE(validate_meshes({mesh({{"dp", 4}}), mesh({{"edp", 2}, {"ep", 2}}, "expert")}, 4).has_value());
  EXPECT_TRUE(validate_meshes({mesh({{"dp", 1}})}, 1).has_value());
}

TEST(Mesh, a_job_without_a_mesh_is_refused) { EXPECT_EQ(refused_mesh({}, 2).path, "meshes"); }

TEST(Mesh, names_what_is_wrong_with_sizes) {
  const Error zero = refused_mesh({mesh({{"dp", 2}, {"tp", 0}})}, 2);
  EXPECT_EQ(zero.code, ErrorCode::InvalidParams);
  EXPECT_EQ(zero.path, "meshes[0].axes[1].size");
  EXPECT_THAT(zero.message, HasSubstr("'tp'"));
  EXPECT_THAT(zero.message, HasSubstr("size 0"));

  const Error few = refused_mesh({mesh({{"dp", 2}, {"tp", 3}})}, 8);
  EXPECT_EQ(few.path, "meshes[0].axes");
  EXPECT_THAT(few.message, HasSubstr("covers 6 ranks, the job has 8"));
}

TEST(Mesh, a_product_beyond_64_bits_does_not_wrap_to_the_world_size) {
  const std::int64_t big = std::int64_t{1} << 32;
  EXPECT_EQ(refused_mesh({mesh({{"a", big}, {"b", big}, {"c", 4}})}, 4).path, "meshes[0].axes");
  EXPECT_EQ(
      refused_mesh({mesh({{"a", std::numeric_limits<std::int64_t>::max()}, {"b", 3}})}, 4).path, "meshes[0].axes"
  );
}

TEST(Mesh, names_must_be_there_and_differ) {
  EXPECT_EQ(refused_mesh({mesh({{"dp", 2}, {"dp", 1}})}, 2).path, "meshes[0].axes[1].name");
  EXPECT_EQ(refused_mesh({mesh({{"", 2}})}, 2).path, "meshes[0].axes[0].name");
  EXPECT_EQ(refused_mesh({mesh({{"dp", 2}}, "")}, 2).path, "meshes[0].name");
  EXPECT_EQ(refused_mesh({mesh({{"dp", 2}}), mesh({{"dp", 2}})}, 2).path, "meshes[1].name");
  EXPECT_EQ(refused_mesh({mesh({{std::string(513, 'x'), 2}})}, 2).path, "meshes[0].axes[0].name");
}

TEST(Mesh, a_sync_order_names_every_axis_that_counts_once) {
  Mesh dense = mesh({{"dp", 2}, {"tp", 2}, {"cp", 1}});
  dense.sync_order = {"dp", "tp"};
  EXPECT_TRUE(validate_meshes({dense}, 4).has_value());

  dense.sync_order = {"tpp", "dp"};
  EXPECT_EQ(refused_mesh({dense}, 4).path, "meshes[0].sync_order[0]");
  EXPECT_THAT(refused_mesh({dense}, 4).hint, HasSubstr("'tp'"));

  dense.sync_order = {"tp", "tp"};
  EXPECT_EQ(refused_mesh({dense}, 4).path, "meshes[0].sync_order[1]");

  dense.sync_order = {"tp"};
  EXPECT_EQ(refused_mesh({dense}, 4).path, "meshes[0].sync_order");
  EXPECT_THAT(refused_mesh({dense}, 4).message, HasSubstr("'dp'"));
}

}  // namespace
}  // namespace gradsync::plan
