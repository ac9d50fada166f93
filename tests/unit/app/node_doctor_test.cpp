#include "app/daemon/node_doctor.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace gradsync::app {
namespace {

using testing::HasSubstr;

constexpr std::uint32_t kOwnUid = 1;
constexpr Holder kCaller{1000, 42};
constexpr const char* kNothingFound = "printf '[]' >&3";

class NodeDoctorTest : public testing::Test {
 protected:
  NodeDoctorTest() {
    std::string name = (std::filesystem::temp_directory_path() / "gradsync-doctor-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }

  ~NodeDoctorTest() override { std::filesystem::remove_all(folder_); }

  /// Each examination notes its pid, and goes on with `script`.
  [[nodiscard]] ExaminationOptions noted(const std::string& script) const {
    ExaminationOptions options;
    options.command = {"/bin/sh", "-c", "echo $$ >>'" + pids().string() + "'; " + script};
    options.gpu.kernels = "off";
    return options;
  }

  [[nodiscard]] std::filesystem::path pids() const { return folder_ / "pids"; }

  [[nodiscard]] std::vector<pid_t> examined() const {
    std::vector<pid_t> found;
    std::ifstream file(pids());
    for (pid_t pid = 0; file >> pid;) {
      found.push_back(pid);
    }
    return found;
  }

  /// Asks, and keeps the answer.
  void ask(NodeDoctor& doctor, const Holder& caller = kCaller) {
    doctor.ask(caller, [this](const Result<rpc::DoctorAnswer>& answer) { answers.push_back(answer); });
  }

  void run_until_answers(std::size_t count) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (answers.size() < count && std::chrono::steady_clock::now() < end) {
      io.run_one_for(std::chrono::seconds(1));
    }
    ASSERT_EQ(answers.size(), count);
  }

  boost::asio::io_context io;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
  std::vector<Result<rpc::DoctorAnswer>> answers;
  std::filesystem::path folder_;
};

TEST_F(NodeDoctorTest, answers_all_that_ask_while_it_examines_by_one_examination) {
  NodeDoctor doctor(io, noted(kNothingFound), kOwnUid);
  ask(doctor);
  ask(doctor, {2000, 7});
  EXPECT_TRUE(answers.empty()) << "the io thread waits for nothing";
  run_until_answers(2);
  EXPECT_TRUE(answers[0]);
  EXPECT_TRUE(answers[1]);
  EXPECT_EQ(examined().size(), 1U);
}

TEST_F(NodeDoctorTest, examines_anew_for_those_who_ask_later) {
  NodeDoctor doctor(io, noted(kNothingFound), kOwnUid);
  ask(doctor);
  run_until_answers(1);
  ask(doctor);
  ask(doctor);
  EXPECT_EQ(examined().size(), 1U) << "first it rests";
  run_until_answers(3);
  EXPECT_EQ(examined().size(), 2U);
}

TEST_F(NodeDoctorTest, tells_all_that_wait_of_a_failure_and_goes_on) {
  NodeDoctor doctor(
      io, noted("if [ $(wc -l <'" + pids().string() + "') = 1 ]; then exit 70; fi; printf '[]' >&3"), kOwnUid
  );
  ask(doctor);
  ask(doctor, {2000, 7});
  run_until_answers(2);
  for (const auto& answer : answers) {
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::DoctorFailed);
    EXPECT_THAT(answer.error().message, HasSubstr("exit code 70"));
  }
  ask(doctor);
  run_until_answers(3);
  EXPECT_TRUE(answers[2]) << answers[2].error().message;
}

TEST_F(NodeDoctorTest, answers_where_there_is_no_doctor) {
  ExaminationOptions options;
  options.command = {"/nowhere/gradsyncd"};
  NodeDoctor doctor(io, options, kOwnUid);
  ask(doctor);
  run_until_answers(1);
  ASSERT_FALSE(answers[0]);
  EXPECT_THAT(answers[0].error().message, HasSubstr("cannot be started"));
}

TEST_F(NodeDoctorTest, limits_the_calls_that_wait_of_a_process_and_of_a_uid) {
  NodeDoctor doctor(io, noted(kNothingFound), kOwnUid);
  for (int i = 0; i < 32; ++i) {
    ask(doctor);
  }
  ask(doctor);
  ASSERT_EQ(answers.size(), 1U);
  ASSERT_FALSE(answers[0]);
  EXPECT_EQ(answers[0].error().code, ErrorCode::LimitExceeded);
  EXPECT_THAT(answers[0].error().message, HasSubstr("32 calls of doctor.run of process 42 wait, its limit is 32"));
  for (int i = 0; i < 16; ++i) {
    ask(doctor, {kCaller.uid, 43});
  }
  ask(doctor, {kCaller.uid, 44});
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_THAT(answers[1].error().message, HasSubstr("uid 1000"));
  ask(doctor, {2000, 7});
  EXPECT_EQ(answers.size(), 2U) << "another uid waits beside them";
  run_until_answers(2 + 32 + 16 + 1);
  ask(doctor);
  run_until_answers(2 + 32 + 16 + 1 + 1);
  EXPECT_TRUE(answers.back()) << "the places are free again";
}

TEST_F(NodeDoctorTest, ends_its_process_when_it_ends) {
  std::optional<NodeDoctor> doctor(std::in_place, io, noted("exec sleep 1000"), kOwnUid);
  ask(*doctor);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (examined().empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  ASSERT_EQ(examined().size(), 1U);
  doctor->stop();
  ask(*doctor);
  ASSERT_EQ(answers.size(), 1U) << "who asks after the end is told at once, who waits hears nothing more";
  EXPECT_EQ(answers[0].error().code, ErrorCode::Draining);
  const pid_t pid = examined().front();
  doctor.reset();
  EXPECT_NE(::kill(pid, 0), 0) << "it was killed and reaped";
}

}  // namespace
}  // namespace gradsync::app
