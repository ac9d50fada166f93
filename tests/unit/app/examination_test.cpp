#include "app/doctor/examination.hpp"

#include "app/cli/command_line.hpp"
#include "app/config/settings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/eventfd.h>

#include <csignal>
#include <string>
#include <thread>

namespace gradsync::app {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Milliseconds kLong{60'000};
constexpr Milliseconds kShort{200};

/// The doctor's place is taken by a script of a shell, whose descriptor 3 is the pipe.
ExaminationOptions of_script(const std::string& script, Milliseconds deadline = kLong) {
  ExaminationOptions options;
  options.command = {"/bin/sh", "-c", script};
  options.gpu.devices = "GPU-1,GPU-2";
  options.deadline = deadline;
  options.most_bytes = 4096;
  return options;
}

class ExaminationTest : public testing::Test {
 protected:
  /// What it answers; its process has ended then.
  Result<rpc::DoctorAnswer> examined(ExaminationOptions options) {
    Examination examination(std::move(options), stop_);
    Result<rpc::DoctorAnswer> answer = examination.run();
    EXPECT_TRUE(examination.wait_for_end(kLong));
    pid_ = examination.pid();
    return answer;
  }

  Error refused(ExaminationOptions options) {
    const Result<rpc::DoctorAnswer> answer = examined(std::move(options));
    EXPECT_FALSE(answer);
    return answer ? Error{} : answer.error();
  }

  UniqueFd stop_{::eventfd(0, EFD_CLOEXEC)};
  pid_t pid_ = 0;
};

TEST_F(ExaminationTest, gives_what_the_process_found_and_the_gpus_that_may_be_used) {
  const auto answer =
      examined(of_script(R"(printf '[{"level":"ok","what":"a","hint":""},{"level":"note","what":"b","hint":"c"}]' >&3)")
      );
  ASSERT_TRUE(answer) << answer.error().message;
  using Level = rpc::DoctorFinding::Level;
  EXPECT_THAT(
      answer->findings, ElementsAre(rpc::DoctorFinding{Level::Ok, "a", ""}, rpc::DoctorFinding{Level::Note, "b", "c"})
  );
  EXPECT_TRUE(answer->well);
  EXPECT_THAT(answer->gpus, ElementsAre("GPU-1", "GPU-2"));
}

TEST_F(ExaminationTest, is_not_well_where_one_finding_is_a_problem) {
  ExaminationOptions options = of_script(R"(printf '[{"level":"problem","what":"a","hint":"b"}]' >&3; exit 1)");
  options.gpu.kernels = "off";
  const auto answer = examined(options);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_FALSE(answer->well);
  EXPECT_TRUE(answer->gpus.empty()) << "GPUs are switched off";
}

TEST_F(ExaminationTest, says_how_a_process_ended_that_found_nothing) {
  const Error ended = refused(of_script("exit 78"));
  EXPECT_EQ(ended.code, ErrorCode::DoctorFailed);
  EXPECT_THAT(ended.message, AllOf(HasSubstr("(pid "), HasSubstr("ended with exit code 78")));
  EXPECT_THAT(refused(of_script("kill -9 $$")).message, HasSubstr("ended by signal 9"));
}

TEST_F(ExaminationTest, believes_only_a_whole_list_of_findings) {
  for (const char* text : {"[{", "{}", "[1]", R"([{"level":"bad","what":"a","hint":""}])", R"([{"level":"ok"}])"}) {
    const Error garbage = refused(of_script(std::string("printf '%s' '") + text + "' >&3"));
    EXPECT_EQ(garbage.code, ErrorCode::DoctorFailed) << text;
    EXPECT_THAT(garbage.message, HasSubstr("no list of findings: ")) << text;
  }
}

TEST_F(ExaminationTest, kills_a_process_that_hangs) {
  for (const char* script : {"exec sleep 1000", "exec 3>&-; exec sleep 1000", "trap '' TERM; exec sleep 1000"}) {
    const Error late = refused(of_script(script, kShort));
    EXPECT_EQ(late.code, ErrorCode::DoctorFailed) << script;
    EXPECT_THAT(late.message, HasSubstr("did not end within 200 ms and was killed")) << script;
    EXPECT_THAT(late.hint, HasSubstr("nvidia-smi"));
    EXPECT_NE(::kill(pid_, 0), 0) << "it is reaped";
  }
}

TEST_F(ExaminationTest, kills_a_process_that_writes_too_much) {
  const Error much = refused(of_script("exec yes >&3"));
  EXPECT_EQ(much.code, ErrorCode::DoctorFailed);
  EXPECT_THAT(much.message, HasSubstr("wrote more than 4096 bytes and was killed"));
  EXPECT_NE(::kill(pid_, 0), 0) << "it is reaped";
}

TEST_F(ExaminationTest, says_that_there_is_no_doctor) {
  ExaminationOptions options = of_script("");
  options.command = {"/nowhere/gradsyncd", "doctor"};
  const Error none = refused(options);
  EXPECT_EQ(none.code, ErrorCode::DoctorFailed);
  EXPECT_THAT(none.message, AllOf(HasSubstr("'/nowhere/gradsyncd'"), HasSubstr("cannot be started")));
}

TEST_F(ExaminationTest, ends_when_nobody_needs_it_any_more) {
  Examination examination(of_script("exec sleep 1000"), stop_);
  std::thread stopper([this] { EXPECT_EQ(::eventfd_write(stop_.get(), 1), 0); });
  const auto answer = examination.run();
  stopper.join();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::Draining);
}

TEST_F(ExaminationTest, has_the_settings_of_the_daemon_whatever_a_file_and_the_environment_say) {
  const GpuSection given{"", "GPU-1,--GPU-2", "off", 11, 12, 13};
  const NcclSection nccl{"sockets", "/a/libnccl.so.2", "=eth0", 4, 2, -1, 14, 15};
  std::vector<std::string> words = examination_of(given, nccl).command;
  std::vector<const char*> arguments;
  for (const std::string& word : words) {
    arguments.push_back(word.c_str());
  }
  const auto parsed = parse_command_line(static_cast<int>(arguments.size()), arguments.data());
  ASSERT_TRUE(std::holds_alternative<Command>(parsed));
  const auto doctor = std::get<DoctorCommand>(std::get<Command>(parsed));
  EXPECT_EQ(doctor.fd, 3);
  ::setenv("GRADSYNC_SERVER_TCP", "127.0.0.1:9479", 1);  // of a daemon whose file has the token for it
  const Result<Configuration> settings = load_settings(settings_of(doctor));
  ::unsetenv("GRADSYNC_SERVER_TCP");
  ASSERT_TRUE(settings) << settings.error().message;
  const GpuSection& read = settings->options.gpu;
  EXPECT_EQ(read.kernels, given.kernels);
  EXPECT_EQ(read.devices, given.devices);
  EXPECT_EQ(read.peer_access, given.peer_access);
  EXPECT_EQ(read.map_ms, given.map_ms);
  EXPECT_EQ(read.plan_ms, given.plan_ms);
  EXPECT_EQ(read.abort_ms, given.abort_ms);
  const NcclSection& of_nccl = settings->options.nccl;
  EXPECT_EQ(of_nccl.library, nccl.library);
  EXPECT_EQ(of_nccl.interface, nccl.interface);
  EXPECT_EQ(of_nccl.max_ctas, nccl.max_ctas);
  EXPECT_EQ(of_nccl.cga_cluster, nccl.cga_cluster);
  EXPECT_EQ(of_nccl.traffic_class, nccl.traffic_class);
  EXPECT_EQ(of_nccl.init_ms, nccl.init_ms);
  EXPECT_EQ(of_nccl.abort_ms, nccl.abort_ms);
  EXPECT_EQ(settings->origins.at("gpu.kernels").substr(0, 5), "flag ") << "also one that is empty";
}

}  // namespace
}  // namespace gradsync::app
