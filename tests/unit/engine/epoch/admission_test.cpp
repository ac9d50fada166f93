#include "engine/epoch/admission.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

using testing::HasSubstr;

const JobIdentity kJob{"llm", 1000, 2, 8, {}, 8};
const RankHolder kNobody{};
const RankHolder kTrainer{7, "client-a", 4711};

AttachRequest request() {
  AttachRequest asked;
  asked.job = "llm";
  asked.uid = 1000;
  asked.pid = 4712;
  asked.client_id = "client-b";
  asked.rank = 3;
  asked.world_size = 8;
  asked.restart_count = 2;
  return asked;
}

Error refusal(const RankHolder& holder, const AttachRequest& asked) {
  const Result<void> answer = may_attach(kJob, holder, false, asked);
  EXPECT_TRUE(answer.has_error());
  return answer.has_error() ? answer.error() : Error{};
}

TEST(Admission, a_free_rank_of_the_same_job_may_be_taken) { EXPECT_TRUE(may_attach(kJob, kNobody, false, request())); }

TEST(Admission, a_held_rank_is_refused_with_the_process_that_holds_it) {
  const Error error = refusal(kTrainer, request());
  EXPECT_EQ(error.code, ErrorCode::RankInUse);
  EXPECT_EQ(error.rank, 3);
  EXPECT_EQ(error.job, "llm");
  EXPECT_THAT(error.message, HasSubstr("live process 4711"));
}

TEST(Admission, the_client_of_before_resumes_and_its_process_may_attach_again) {
  AttachRequest again = request();
  again.client_id = "client-a";
  EXPECT_TRUE(resumes(kTrainer, again));
  EXPECT_TRUE(may_attach(kJob, kTrainer, false, again));

  AttachRequest anew = request();
  anew.pid = 4711;
  EXPECT_FALSE(resumes(kTrainer, anew));
  EXPECT_TRUE(may_attach(kJob, kTrainer, false, anew));
  EXPECT_FALSE(resumes(kNobody, again)) << "a rank that nobody holds is not resumed";
}

TEST(Admission, a_process_of_unknown_pid_is_not_taken_for_the_holder) {
  AttachRequest unknown = request();
  unknown.pid = 0;
  EXPECT_EQ(refusal({7, "client-a", 0}, unknown).code, ErrorCode::RankInUse);
}

TEST(Admission, an_older_restart_and_another_world_are_refused_by_both_values) {
  AttachRequest older = request();
  older.restart_count = 1;
  const Error superseded = refusal(kNobody, older);
  EXPECT_EQ(superseded.code, ErrorCode::Superseded);
  EXPECT_EQ(superseded.path, "restart_count");
  EXPECT_THAT(superseded.message, HasSubstr("restart 1 of job 'llm' is over: restart 2"));

  AttachRequest larger = request();
  larger.world_size = 16;
  const Error mismatch = refusal(kNobody, larger);
  EXPECT_EQ(mismatch.code, ErrorCode::JobMismatch);
  EXPECT_EQ(mismatch.path, "world_size");
  EXPECT_THAT(mismatch.message, HasSubstr("world_size is 16, but the ranks attached to job 'llm' said 8"));
}

TEST(Admission, ranks_of_a_node_say_the_same_of_it) {
  const JobIdentity job{"llm", 1000, 2, 8, {}, 4, "node0"};
  AttachRequest fits = request();
  fits.local_world_size = 4;
  fits.coordinator = "node0";
  EXPECT_TRUE(may_attach(job, kNobody, false, fits));

  AttachRequest other = fits;
  other.local_world_size = 2;
  const Result<void> of_two = may_attach(job, kNobody, false, other);
  ASSERT_TRUE(of_two.has_error());
  EXPECT_EQ(of_two.error().path, "local_world_size");
  EXPECT_THAT(of_two.error().message, HasSubstr("local_world_size is 2, but the ranks attached to job 'llm' said 4"));

  other = fits;
  other.coordinator = "node1:9000";
  const Result<void> elsewhere = may_attach(job, kNobody, false, other);
  ASSERT_TRUE(elsewhere.has_error());
  EXPECT_EQ(elsewhere.error().path, "coordinator");
  EXPECT_THAT(elsewhere.error().message, HasSubstr("coordinator is 'node1:9000'"));
}

TEST(Admission, one_rank_more_than_a_node_has_is_refused_with_both_numbers) {
  const JobIdentity job{"llm", 1000, 2, 8, {}, 4};
  AttachRequest fifth = request();
  fifth.local_world_size = 4;
  const Result<void> refused = may_attach(job, kNobody, true, fifth);
  ASSERT_TRUE(refused.has_error());
  EXPECT_EQ(refused.error().code, ErrorCode::JobMismatch);
  EXPECT_EQ(refused.error().path, "local_world_size");
  EXPECT_THAT(refused.error().message, HasSubstr("rank 3 would be rank 5 of this node"));
}

TEST(Admission, an_address_that_is_none_is_refused_before_anybody_waits_for_it) {
  AttachRequest asked = request();
  asked.local_world_size = 4;
  asked.coordinator = "node0:9478";
  asked.meshes = {{"default", {{"dp", 8}}, {}}};
  EXPECT_TRUE(check_attach(asked, 4096, true));
  asked.coordinator = "node0:port";
  const Result<void> refused = check_attach(asked, 4096, true);
  ASSERT_TRUE(refused.has_error());
  EXPECT_EQ(refused.error().path, "coordinator");
  EXPECT_THAT(refused.error().message, HasSubstr("'node0:port'"));
}

TEST(Admission, ranks_elsewhere_need_a_daemon_that_is_set_up_for_them) {
  AttachRequest asked = request();
  asked.local_world_size = 4;
  asked.meshes = {{"default", {{"dp", 8}}, {}}};
  const Result<void> refused = check_attach(asked, 4096, false);
  ASSERT_TRUE(refused.has_error());
  EXPECT_EQ(refused.error().code, ErrorCode::NoPeers);
  EXPECT_THAT(refused.error().message, HasSubstr("4 of its 8 ranks"));
  asked.local_world_size = 9;
  EXPECT_EQ(check_attach(asked, 4096, true).error().path, "local_world_size");
}

}  // namespace
}  // namespace gradsync::engine
