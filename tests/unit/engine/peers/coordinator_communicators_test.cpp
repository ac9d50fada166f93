// What becomes of the communicators that nodes offer with READY: the ids go to their members alone, and what cannot be
// agreed on ends the epoch before anything is built.

#include "device/nccl/communicator_agreement.hpp"
#include "unit/engine/peers/machine_states.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using CoordinatorState = CoordinatorMachine::State;

constexpr device::InstanceHash kHeld = 0xFEED;

device::NcclUniqueId id_of(char first) {
  device::NcclUniqueId id;
  id.bytes[0] = first;
  return id;
}

PeerReady ready_with(std::vector<device::CommunicatorOffer> offers, int version = 22'809) {
  return {kEpoch, "plan", "policies", false, device::LoadedCommunicators{version, std::move(offers)}};
}

/// By link, the own member being 0: what each was told to connect.
std::map<LinkNumber, PeerConnect> connects(const CoordinatorActions& actions) {
  std::map<LinkNumber, PeerConnect> found;
  for (const CoordinatorAction& action : actions) {
    if (const auto* send = std::get_if<SendToMember>(&action)) {
      found.emplace(send->link, std::get<PeerConnect>(send->message));
    } else {
      found.emplace(0, std::get<PeerConnect>(std::get<TellOwnMember>(action).message));
    }
  }
  return found;
}

std::vector<std::string> names_in(const PeerConnect& connect) {
  std::vector<std::string> names;
  for (const device::CommunicatorId& id : connect.communicators) {
    names.push_back(id.name);
  }
  return names;
}

/// Nodes 0, 1 and 2 are members of "all", and nodes 0 and 1 of "pair".
struct OfferedCommunicators : testing::Test {
  CoordinatorActions offer_all() {
    (void)led.by(0, ready_with({{"all", 3, 0, {}, id_of('a')}, {"pair", 2, 0, {}, id_of('p')}}));
    (void)led.by(1, ready_with({{"all", 3, 1, {}, {}}, {"pair", 2, 1, {}, {}}}));
    return led.by(2, ready_with({{"all", 3, 2, {}, {}}}));
  }

  LedCoordinator led{CoordinatorState::Preparing};
};

TEST_F(OfferedCommunicators, each_node_gets_the_ids_of_those_that_it_is_a_member_of) {
  const CoordinatorActions actions = offer_all();
  EXPECT_EQ(words_of(actions), "1:connect 2:connect own:connect");
  const std::map<LinkNumber, PeerConnect> told = connects(actions);
  EXPECT_THAT(names_in(told.at(0)), ElementsAre("all", "pair"));
  EXPECT_THAT(names_in(told.at(1)), ElementsAre("all", "pair"));
  EXPECT_THAT(names_in(told.at(2)), ElementsAre("all"));
  EXPECT_EQ(told.at(2).communicators[0].id, id_of('a'));
  EXPECT_EQ(told.at(1).communicators[1].id, id_of('p'));
  EXPECT_EQ(told.at(1).communicators[1].instance, device::instance_of(id_of('p')));
}

TEST_F(OfferedCommunicators, what_all_members_have_is_kept) {
  (void)led.by(0, ready_with({{"all", 3, 0, kHeld, {}}}));
  (void)led.by(1, ready_with({{"all", 3, 1, kHeld, {}}}));
  const PeerConnect kept = connects(led.by(2, ready_with({{"all", 3, 2, kHeld, {}}}))).at(2);
  EXPECT_EQ(kept.communicators[0].instance, kHeld);
  EXPECT_FALSE(kept.communicators[0].id);
}

TEST_F(OfferedCommunicators, a_node_that_takes_part_in_none_gets_none) {
  (void)led.by(0, ready_with({{"pair", 2, 0, {}, id_of('p')}}));
  (void)led.by(1, ready_with({{"pair", 2, 1, {}, {}}}));
  const std::map<LinkNumber, PeerConnect> told = connects(led.by(2, PeerReady{kEpoch, "plan", "policies", false}));
  EXPECT_THAT(names_in(told.at(2)), IsEmpty());
  EXPECT_THAT(names_in(told.at(1)), ElementsAre("pair"));
}

TEST_F(OfferedCommunicators, versions_that_differ_end_the_epoch_with_both_nodes_and_both_versions) {
  (void)led.by(0, ready_with({{"pair", 2, 0, {}, id_of('p')}}));
  (void)led.by(1, ready_with({{"pair", 2, 1, {}, {}}}, 22'907));
  const CoordinatorActions actions = led.by(2, PeerReady{kEpoch, "plan", "policies", false});
  EXPECT_EQ(words_of(actions), "1:end 2:end own:end") << "nothing is built";
  const Error error = sent<PeerEnd>(actions).error;
  EXPECT_EQ(error.code, ErrorCode::NodeRefused);
  EXPECT_EQ(error.node, "n1");
  EXPECT_EQ(error.message, "node n1 has NCCL 2.29.7, and node n0 has NCCL 2.28.9");
}

/// Ranks need not declare anew for it: a member goes on with what they have declared.
TEST_F(OfferedCommunicators, one_that_some_members_have_lost_ends_the_epoch_and_declarations_count_on) {
  (void)led.by(0, ready_with({{"pair", 2, 0, kHeld, {}}}));
  (void)led.by(1, ready_with({{"pair", 2, 1, {}, {}}}));
  const Error error = sent<PeerEnd>(led.by(2, PeerReady{kEpoch, "plan", "policies", false})).error;
  EXPECT_EQ(error.code, ErrorCode::StaleEpoch);
  EXPECT_THAT(error.message, HasSubstr("communicator pair is on node n0 and not on all others"));
  LedMember member(MemberMachine::State::Ready);
  EXPECT_EQ(words_of(member.told_by(PeerEnd{kEpoch, 0, error})), "EpochEnded join");
}

TEST_F(OfferedCommunicators, nodes_have_longer_to_build_them_than_a_lane_gives_itself) {
  (void)offer_all();
  (void)led.by(0, PeerConnected{kEpoch});
  for (led.now = kNow; led.now < kNow + CoordinatorMachine::kBuilt; led.now += std::chrono::seconds(3)) {
    EXPECT_EQ(led.machine.state(), CoordinatorState::Connecting);
    (void)led.by(1, PeerBeat{});
    (void)led.by(2, PeerBeat{});
  }
  const CoordinatorActions actions = led.machine.on_time(kNow + CoordinatorMachine::kBuilt);
  EXPECT_THAT(sent<PeerEnd>(actions).error.message, testing::AllOf(HasSubstr("n1"), HasSubstr("n2")));
}

TEST(MemberCommunicators, are_said_with_ready_and_told_with_connect) {
  LedMember led(MemberMachine::State::Preparing);
  LocalsReady ready{kEpoch, "plan", "policies", false};
  ready.communicators = device::LoadedCommunicators{22'809, {{"pair", 2, 1, {}, {}}}};
  const auto said = sent<PeerReady>(led.local(ready));
  ASSERT_TRUE(said.communicators);
  EXPECT_EQ(said.communicators->version, 22'809);
  EXPECT_EQ(said.communicators->offers[0].name, "pair");
  const device::CommunicatorId id{"pair", device::instance_of(id_of('p')), id_of('p')};
  EXPECT_EQ(words_of(led.told_by(PeerConnect{kEpoch - 1, {id}})), "") << "an id of an epoch that is over";
  const auto connect = told<ConnectEpoch>(led.told_by(PeerConnect{kEpoch, {id}}));
  EXPECT_EQ(connect.communicators[0].id, id.id);
  EXPECT_EQ(words_of(led.told_by(PeerConnect{kEpoch, {id}})), "") << "it comes once";
}

}  // namespace
}  // namespace gradsync::engine
