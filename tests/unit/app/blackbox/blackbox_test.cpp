// Dumps on their way from the engine to their files.

#include "app/blackbox/blackbox.hpp"

#include "unit/engine/harness.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

namespace gradsync::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BlackboxTest : public ::testing::Test {
 protected:
  BlackboxTest() { blackbox.connect(harness.engine, clock); }

  static std::string new_folder() {
    std::string name = std::filesystem::temp_directory_path().string() + "/gradsync-blackbox-XXXXXX";
    return ::mkdtemp(name.data());
  }

  ~BlackboxTest() override {
    blackbox.stop();
    ::chmod(folder.c_str(), 0700);
    std::filesystem::remove_all(folder);
  }

  [[nodiscard]] Blackbox::Options options() const {
    return {folder + "/dumps", 32, "node-a", "0123456789abcdef", "0.1.0"};
  }

  engine::EngineOptions engine_options() {
    engine::EngineOptions chosen;
    chosen.keep_dump = [this](engine::FlightDump dump) { blackbox.on_failure(std::move(dump)); };
    return chosen;
  }

  using Answered = std::optional<Result<rpc::DumpAnswer>>;

  std::shared_ptr<Answered> ask(Blackbox& of, const std::optional<std::string>& job = {}) {
    auto answered = std::make_shared<Answered>();
    clock.turn("a test", [&] {
      of.dump(rpc::DumpReason::Request, job, [answered](const Result<rpc::DumpAnswer>& answer) {
        EXPECT_FALSE(answered->has_value()) << "there are two answers";
        *answered = answer;
      });
    });
    return answered;
  }

  Result<rpc::DumpAnswer> dump(const std::optional<std::string>& job = {}) { return dump_of(blackbox, job); }

  Result<rpc::DumpAnswer> dump_of(Blackbox& of, const std::optional<std::string>& job = {}) {
    const auto answered = ask(of, job);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!answered->has_value() && std::chrono::steady_clock::now() < end) {
      io.run_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(answered->has_value()) << "there is no answer";
    return answered->value_or(rpc::DumpAnswer{});
  }

  /// Dumps by the name of their job, when there are so many.
  std::map<std::string, rpc::DumpFile> written(std::size_t count) {
    std::map<std::string, rpc::DumpFile> dumps;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (dumps.size() != count && std::chrono::steady_clock::now() < end) {
      io.run_for(std::chrono::milliseconds(5));
      dumps.clear();
      std::error_code ignored;
      for (const auto& entry : std::filesystem::directory_iterator(folder + "/dumps", ignored)) {
        if (entry.path().extension() == ".jsonl") {
          std::ifstream file(entry.path());
          if (!file.is_open()) {
            continue;  // an old one was removed just now
          }
          Result<rpc::DumpFile> read = rpc::read_dump_file(file);
          EXPECT_TRUE(read) << (read ? "" : read.error().path + read.error().message);
          dumps[read->head.job] = *read;
        }
      }
    }
    EXPECT_EQ(dumps.size(), count);
    return dumps;
  }

  /// One rank of a job of this name.
  void attach(const std::string& job, std::uint32_t uid = 1000) {
    engine::AttachRequest request = harness.request(0, 1);
    request.job = job;
    request.uid = uid;
    request.client_id = job;
    ASSERT_TRUE(harness.engine.attach(request));
  }

  std::string folder = new_folder();
  boost::asio::io_context io;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
  prometheus::Registry registry;
  net::IoWatch watch{registry};
  Blackbox blackbox{io, options()};
  engine::Harness harness{engine_options()};
  EngineClock clock{io, harness.engine, watch};
};

TEST_F(BlackboxTest, writes_every_job_one_after_the_other) {
  for (int job = 0; job < 40; ++job) {
    attach("job-" + std::to_string(job));
  }
  const Result<rpc::DumpAnswer> answer = dump();
  ASSERT_TRUE(answer) << answer.error().message;
  ASSERT_EQ(answer->dumps.size(), 40U);
  (void)written(32);  // the last of that user
  for (const rpc::DumpedJob& each : answer->dumps) {
    const bool among_the_last = &each >= &answer->dumps[8];
    EXPECT_EQ(std::filesystem::exists(each.file), among_the_last) << each.file;
  }
}

TEST_F(BlackboxTest, writes_the_job_that_is_asked_for) {
  attach("a");
  attach("b");
  attach("b", 1001);
  const Result<rpc::DumpAnswer> answer = dump("b");
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->dumps.size(), 2U);
  EXPECT_EQ(answer->dumps[0].uid, 1000U);
  EXPECT_EQ(answer->dumps[1].uid, 1001U);
  const auto dumps = written(1);
  EXPECT_EQ(dumps.at("b").head.why, rpc::DumpReason::Request);
  EXPECT_EQ(dumps.at("b").head.node, "node-a");
  EXPECT_EQ(dumps.at("b").head.incarnation, "0123456789abcdef");
  const Result<rpc::DumpAnswer> unknown = dump("c");
  ASSERT_TRUE(unknown.has_error());
  EXPECT_EQ(unknown.error().code, ErrorCode::UnknownJob);
  EXPECT_EQ(unknown.error().path, "job");
}

TEST_F(BlackboxTest, writes_what_failed_with_its_cause) {
  harness.start(2);
  harness.finish(0, 1);
  harness.finish(1, 2);
  harness.pump();
  const auto dumps = written(1);
  const rpc::DumpFile& dump = dumps.at("job");
  EXPECT_EQ(dump.head.why, rpc::DumpReason::Failure);
  EXPECT_EQ(dump.head.cause->kind, "step_mismatch");
  EXPECT_EQ(dump.attempts.back().error, "step_mismatch");
}

TEST_F(BlackboxTest, goes_on_where_the_folder_cannot_be_used) {
  attach("a");
  ::chmod(folder.c_str(), 0500);
  const bool root = ::geteuid() == 0;  // may write all the same
  const Result<rpc::DumpAnswer> answer = dump();
  ASSERT_EQ(answer.has_value(), root);
  if (root) {
    (void)written(1);
    return;
  }
  EXPECT_EQ(answer.error().code, ErrorCode::InternalError);
  EXPECT_FALSE(std::filesystem::exists(folder + "/dumps"));
  ::chmod(folder.c_str(), 0700);
  ASSERT_TRUE(dump());
  (void)written(1);
}

/// The first error is the answer, once, when all have been tried.
TEST_F(BlackboxTest, answers_why_dumps_are_not_written) {
  for (const char* job : {"a", "b", "c"}) {
    attach(job);
  }
  std::ofstream(folder + "/file") << "in the way";
  Blackbox::Options chosen = options();
  chosen.folder = folder + "/file";
  Blackbox without(io, chosen);
  without.connect(harness.engine, clock);
  for (const std::optional<std::string>& job : {std::optional<std::string>(), std::optional<std::string>("b")}) {
    const Result<rpc::DumpAnswer> answer = dump_of(without, job);
    ASSERT_TRUE(answer.has_error());
    EXPECT_EQ(answer.error().code, ErrorCode::InternalError);
    EXPECT_THAT(answer.error().message, HasSubstr(folder + "/file"));
  }
  without.stop();
}

TEST_F(BlackboxTest, has_nothing_to_write_where_there_is_no_job) {
  const Result<rpc::DumpAnswer> answer = dump();
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->dumps.empty());
}

TEST_F(BlackboxTest, writes_what_waits_before_it_stops_and_answers_the_rest) {
  attach("a");
  attach("b");
  const auto answered = ask(blackbox);
  blackbox.stop();
  ASSERT_TRUE(answered->has_value());
  ASSERT_TRUE((*answered)->has_error());
  EXPECT_EQ((*answered)->error().code, ErrorCode::Draining);
  EXPECT_EQ(written(1).count("a"), 1U);
}

TEST_F(BlackboxTest, refuses_where_dumps_are_off) {
  attach("a");
  Blackbox off(io, {"", 32, "node-a", "0123456789abcdef", "0.1.0"});
  off.connect(harness.engine, clock);
  const Result<rpc::DumpAnswer> answer = dump_of(off);
  ASSERT_TRUE(answer.has_error());
  EXPECT_EQ(answer.error().code, ErrorCode::InvalidRequest);
  EXPECT_THAT(answer.error().message, HasSubstr("blackbox.folder is \"off\""));
  off.on_failure(*harness.engine.dump_of({1000, "a"}));
  io.run_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace gradsync::app
