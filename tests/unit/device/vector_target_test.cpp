#include "unit/device/vector_target.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::device {
namespace {

struct WantedVectorTarget : testing::Environment {
  void SetUp() override { use_wanted_vector_target(); }
};

[[maybe_unused]] const testing::Environment* const kWanted =
    testing::AddGlobalTestEnvironment(new WantedVectorTarget);  // NOLINT: GoogleTest deletes it

TEST(VectorTarget, is_the_best_unless_another_is_wanted) {
  const std::vector<std::string> targets = vector_targets();
  if (const std::string wanted = wanted_vector_target(); wanted.empty()) {
    EXPECT_GE(targets.size(), 2U) << "no vectors on this CPU";
  } else {
    EXPECT_THAT(targets, testing::ElementsAre(wanted));
  }
}

}  // namespace
}  // namespace gradsync::device
