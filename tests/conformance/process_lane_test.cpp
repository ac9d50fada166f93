// What only a process lane can meet: a worker that dies, hangs, or says what no worker says.

#include "conformance/lane_kinds.hpp"
#include "device/process/worker_process.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

namespace gradsync::device {
namespace {

using testing::HasSubstr;

class ProcessLaneTest : public testing::Test {
 protected:
  void start(ProcessLaneOptions options = worker_options()) {
    auto lane = std::make_unique<ProcessLane>(std::move(options), run_.sink());
    lane_ = lane.get();
    run_.use(std::move(lane));
  }

  /// Commands that a worker answers at once with Failed: it knows no plan.
  void expect_alive() {
    const LaneReport& report = run_.ask(UnloadPlan{1});
    EXPECT_THAT(std::get<Failed>(report).message, HasSubstr("plan 1 is not loaded"));
    EXPECT_EQ(lane_->lost(), std::nullopt);
  }

  /// The worker stands still when this returns.
  void freeze() {
    ASSERT_EQ(::kill(lane_->worker_pid(), SIGSTOP), 0);
    siginfo_t info;
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(lane_->worker_pid()), &info, WSTOPPED | WNOWAIT), 0);
  }

  /// Kills the worker when it has done one of so many reductions; how many it has done by then.
  Tag killed_after_the_first_of(Tag reductions) {
    run_.arenas.clear();
    start();
    run_.load(pair_job(4'000'000));
    for (Tag tag = 1; tag <= reductions; ++tag) {
      run_.lane().submit(ReduceBucket{LaneRun::kPlan, tag, 0, {}, false, false});
    }
    run_.expect<Reduced>();
    ::kill(lane_->worker_pid(), SIGKILL);
    Tag reduced = 1;
    while (reduced < reductions && std::holds_alternative<Reduced>(run_.next())) {
      ++reduced;
    }
    return reduced;
  }

  void expect_lost(const std::string& why) {
    const Failed failed = run_.expect<Failed>();
    EXPECT_THAT(failed.message, HasSubstr(why));
    EXPECT_FALSE(failed.aborted);
    EXPECT_EQ(lane_->lost(), failed.message);
  }

  LaneRun run_;
  ProcessLane* lane_ = nullptr;
};

TEST_F(ProcessLaneTest, a_worker_that_is_killed_while_it_works_fails_all_that_is_outstanding) {
  Tag reductions = 60;
  Tag reduced = killed_after_the_first_of(reductions);
  // Where this process is held up, the worker is done before it is killed: then it gets more to do.
  while (reduced == reductions && reductions < 5'000) {
    reductions *= 4;
    reduced = killed_after_the_first_of(reductions);
  }
  ASSERT_LT(reduced, reductions) << "the worker was done before it was killed";
  EXPECT_EQ(std::get<Failed>(run_.reports.back()).tag, reduced + 1);
  for (Tag tag = reduced + 2; tag <= reductions; ++tag) {
    const Failed failed = run_.expect<Failed>();
    EXPECT_EQ(failed.plan, LaneRun::kPlan);
    EXPECT_EQ(failed.tag, tag);
    EXPECT_THAT(failed.message, HasSubstr("ended by signal 9"));
  }
  run_.lane().submit(Abort{LaneRun::kPlan, 1});  // and so is what comes later
  expect_lost("ended by signal 9");
  run_.stop();
  EXPECT_EQ(run_.waiting(), 0U);
}

TEST_F(ProcessLaneTest, another_lane_takes_the_place_of_one_that_is_lost) {
  start();
  expect_alive();
  ::kill(lane_->worker_pid(), SIGKILL);
  run_.lane().submit(UnloadPlan{1});
  expect_lost("ended by signal 9");
  start();
  expect_alive();
}

TEST_F(ProcessLaneTest, a_worker_that_does_not_answer_an_abort_is_killed) {
  ProcessLaneOptions options = worker_options();
  options.abort_deadline = Milliseconds(200);
  start(options);
  run_.load(pair_job(1000));
  const pid_t worker = lane_->worker_pid();
  freeze();
  run_.lane().submit(ReduceBucket{LaneRun::kPlan, 1, 0, {}, false, false});
  run_.lane().submit(Abort{LaneRun::kPlan, 1});
  run_.lane().submit(UnmapBuffer{1});
  for (const BufferId buffer : {0, 0, 1}) {
    expect_lost("did not answer an abort within 200 ms");
    EXPECT_EQ(std::get<Failed>(run_.reports.back()).buffer, buffer);
  }
  EXPECT_EQ(::kill(worker, 0), -1) << "it is gone before anyone hears of it";
  EXPECT_EQ(errno, ESRCH);
}

TEST_F(ProcessLaneTest, a_worker_that_stands_still_is_killed_whatever_it_should_do) {
  ShardedJob job = pair_job(10);
  const std::pair<const char*, std::function<LaneCommand()>> cases[] = {
      {"the mapping of a buffer",
       [] {
         return MapBuffer{1, std::move(*create_arena(4096)), 4096};
       }},
      {"the release of a buffer", [] { return UnmapBuffer{1}; }},
      {"the loading of a plan",
       [&] {
         return LoadPlan{1, job.layout};
       }},
      {"the loading of a plan",
       [] {
         return LoadStats{1, {}};
       }},
      {"the unloading of a plan", [] { return UnloadPlan{1}; }},
  };
  for (const auto& [what, command] : cases) {
    ProcessLaneOptions options = worker_options();
    options.other_deadline = Milliseconds(500);
    start(options);
    run_.ask(UnloadPlan{7});
    freeze();
    run_.lane().submit(command());
    expect_lost("did not answer " + std::string(what) + " within 500 ms");
  }
}

TEST_F(ProcessLaneTest, a_worker_that_does_not_finish_is_killed_when_the_lane_is_destroyed) {
  ProcessLaneOptions options = worker_options();
  options.stop_deadline = Milliseconds(200);
  start(options);
  expect_alive();
  freeze();
  run_.lane().submit(UnloadPlan{2});
  run_.stop();
  EXPECT_THAT(run_.expect<Failed>().message, HasSubstr("did not finish within 200 ms"));
}

TEST_F(ProcessLaneTest, submit_does_not_wait_for_a_worker_that_stands_still) {
  ProcessLaneOptions options = worker_options();
  options.stop_deadline = Milliseconds(1);
  start(options);
  expect_alive();
  freeze();
  constexpr std::size_t kCommands = 20'000;  // far more than a socket holds
  for (std::size_t i = 0; i < kCommands; ++i) {
    run_.lane().submit(ReduceBucket{i, i, 0, std::vector<UnusedTensor>(10), false, false});
  }
  run_.stop();
  EXPECT_EQ(run_.waiting(), kCommands);
}

TEST_F(ProcessLaneTest, what_was_full_goes_on_when_the_worker_does) {
  start();
  expect_alive();
  freeze();
  constexpr std::size_t kCommands = 5000;
  for (std::size_t i = 0; i < kCommands; ++i) {
    run_.lane().submit(ReduceBucket{i, i, 0, std::vector<UnusedTensor>(10), false, false});
  }
  ::kill(lane_->worker_pid(), SIGCONT);
  for (std::size_t i = 0; i < kCommands; ++i) {
    ASSERT_EQ(run_.expect<Failed>().plan, i);
  }
  EXPECT_EQ(lane_->lost(), std::nullopt);
}

TEST_F(ProcessLaneTest, a_worker_that_cannot_be_started_is_a_lane_that_is_lost) {
  ProcessLaneOptions options;
  options.command = {"/nonexistent/gradsyncd", "worker"};
  start(options);
  run_.lane().submit(Abort{1, 2});
  expect_lost("'/nonexistent/gradsyncd' cannot be started: No such file");
}

TEST_F(ProcessLaneTest, a_worker_that_ends_at_once_says_how) {
  ProcessLaneOptions options;
  options.command = {"/bin/sh", "-c", "exit 7"};
  start(options);
  run_.lane().submit(UnloadPlan{1});
  expect_lost("ended with exit code 7");
}

TEST_F(ProcessLaneTest, a_worker_that_closes_its_socket_is_killed) {
  ProcessLaneOptions options;
  options.command = {"/bin/sh", "-c", "exec sleep 600 3>&-"};
  start(options);
  run_.lane().submit(UnloadPlan{1});
  expect_lost("closed its socket");
}

TEST_F(ProcessLaneTest, garbage_is_named_and_ends_the_worker) {
  const std::pair<const char*, const char*> cases[] = {
      {"printf garbage >&3; exec sleep 600", "a datagram of 7 bytes"},
      {R"(printf '\003\000\000\000\000\000\000\000abc' >&3; exec sleep 600)", "shorter than its head"},
      {R"(printf '\000\000\001\000\000\000\000\000' >&3; exec sleep 600)", "without its memfd"},
      {"head -c 20000 /dev/zero | dd bs=20000 iflag=fullblock status=none >&3; exec sleep 600", "too long"},
  };
  for (const auto& [script, found] : cases) {
    ProcessLaneOptions options;
    options.command = {"/bin/sh", "-c", script};
    start(options);
    run_.lane().submit(UnloadPlan{1});
    expect_lost(found);
  }
}

TEST_F(ProcessLaneTest, a_report_that_answers_no_command_ends_the_worker) {
  ProcessLaneOptions options;
  options.command = {"/proc/self/exe", "unasked"};
  start(options);
  run_.lane().submit(UnloadPlan{1});
  expect_lost("a report of kind 8 that answers no command");
}

TEST_F(ProcessLaneTest, a_worker_has_no_descriptor_but_its_socket) {
  start();
  expect_alive();
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(lane_->worker_pid()) + "/fd")) {
    EXPECT_LE(std::stoi(entry.path().filename().string()), 3) << std::filesystem::read_symlink(entry.path());
  }
}

TEST_F(ProcessLaneTest, nothing_is_left_of_a_lane_that_was_destroyed) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator{});
  };
  const auto before = descriptors();
  start();
  expect_alive();
  const pid_t worker = lane_->worker_pid();
  run_.stop();
  EXPECT_EQ(descriptors(), before);
  EXPECT_EQ(::kill(worker, 0), -1);
}

TEST_F(ProcessLaneTest, a_worker_does_not_outlive_its_supervisor_even_where_it_hangs) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  pid_t supervisor = ::fork();
  if (supervisor == 0) {
    ::dup2(write_end.get(), STDOUT_FILENO);
    ::execl("/proc/self/exe", "lanes", "supervisor", nullptr);
    ::_exit(1);
  }
  write_end.reset();
  pid_t worker = 0;
  ASSERT_EQ(::read(read_end.get(), &worker, sizeof(worker)), static_cast<ssize_t>(sizeof(worker)));
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, worker, 0)));
  ASSERT_TRUE(pidfd.valid());
  ASSERT_EQ(::kill(worker, SIGSTOP), 0);  // so that it does not see the end of its socket
  ::kill(supervisor, SIGKILL);
  ::waitpid(supervisor, nullptr, 0);
  pollfd watched{pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&watched, 1, 60'000), 1);
}

}  // namespace
}  // namespace gradsync::device
