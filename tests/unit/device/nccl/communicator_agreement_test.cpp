// Which instance of each communicator an epoch has, by what the nodes say.

#include "device/nccl/communicator_agreement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gradsync::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

constexpr InstanceHash kHeld = 77;

NcclUniqueId offered_id(char content) {
  NcclUniqueId id;
  id.bytes.fill(content);
  return id;
}

/// Two nodes with a GPU each, whose communicator is new.
std::vector<NodeOffers> two_nodes() {
  return {
      {"a", 22809, {{"dp:1", 2, 0, {}, offered_id('x')}}},
      {"b", 22809, {{"dp:1", 2, 1, {}, {}}}},
  };
}

Error refusal_of(const std::vector<NodeOffers>& nodes) {
  const auto agreed = agree_on_communicators(nodes);
  EXPECT_TRUE(agreed.has_error());
  return agreed.has_error() ? agreed.error() : Error();
}

TEST(CommunicatorAgreement, a_new_one_gets_the_id_of_its_first_member) {
  const auto agreed = agree_on_communicators(two_nodes());
  ASSERT_TRUE(agreed) << agreed.error().message;
  ASSERT_THAT(*agreed, SizeIs(1));
  EXPECT_EQ((*agreed)[0].name, "dp:1");
  EXPECT_EQ((*agreed)[0].id, offered_id('x'));
  EXPECT_EQ((*agreed)[0].instance, instance_of(offered_id('x')));
}

TEST(CommunicatorAgreement, one_that_all_members_have_is_kept) {
  std::vector<NodeOffers> nodes = two_nodes();
  nodes[0].offers[0] = {"dp:1", 2, 0, kHeld, {}};
  nodes[1].offers[0].instance = kHeld;
  const auto agreed = agree_on_communicators(nodes);
  ASSERT_TRUE(agreed);
  EXPECT_EQ((*agreed)[0].instance, kHeld);
  EXPECT_FALSE((*agreed)[0].id.has_value());
}

TEST(CommunicatorAgreement, one_that_its_first_member_lost_is_built_anew) {
  std::vector<NodeOffers> nodes = two_nodes();
  nodes[1].offers[0].instance = kHeld;
  EXPECT_EQ(agree_on_communicators(nodes)->front().id, offered_id('x'));
}

TEST(CommunicatorAgreement, one_that_only_another_member_lost_is_refused_until_an_id_was_made) {
  std::vector<NodeOffers> nodes = two_nodes();
  nodes[0].offers[0] = {"dp:1", 2, 0, kHeld, {}};
  EXPECT_THAT(refusal_of(nodes).message, HasSubstr("communicator dp:1 is on node a and not on all others"));
  nodes[1].offers[0].instance = kHeld + 1;
  EXPECT_EQ(refusal_of(nodes).node, "a");
  EXPECT_EQ(refusal_of(nodes).code, ErrorCode::StaleEpoch) << "nobody has to declare anew";
}

TEST(CommunicatorAgreement, other_versions_are_refused_with_both_and_nodes_without_gpus_have_none) {
  std::vector<NodeOffers> nodes = two_nodes();
  nodes.push_back({"c", 0, {}});
  EXPECT_TRUE(agree_on_communicators(nodes));
  nodes[1].version = 22907;
  const Error error = refusal_of(nodes);
  EXPECT_EQ(error.code, ErrorCode::NodeRefused);
  EXPECT_EQ(error.node, "b");
  EXPECT_EQ(error.message, "node b has NCCL 2.29.7, and node a has NCCL 2.28.9");
  EXPECT_THAT(error.hint, HasSubstr("the same version on all nodes"));
}

TEST(CommunicatorAgreement, every_member_is_there_once) {
  std::vector<NodeOffers> nodes = two_nodes();
  nodes[1].offers.clear();
  EXPECT_THAT(refusal_of(nodes).message, HasSubstr("communicator dp:1: no node has its member 1 of 2"));
  nodes = two_nodes();
  nodes[1].offers[0].own = 0;
  EXPECT_THAT(refusal_of(nodes).message, HasSubstr("node b has member 0 of 2, and node a has member 0 of 2"));
  nodes = two_nodes();
  nodes[1].offers[0].members = 3;
  EXPECT_THAT(refusal_of(nodes).message, AllOf(HasSubstr("node b has member 1 of 3"), HasSubstr("member 0 of 2")));
  nodes = two_nodes();
  nodes[0].offers[0].own = 2;
  EXPECT_THAT(refusal_of(nodes).message, HasSubstr("node a has member 2 of 2"));
}

}  // namespace
}  // namespace gradsync::device
