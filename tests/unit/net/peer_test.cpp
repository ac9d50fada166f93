#include "net/socket/peer.hpp"

#include "net/limits/repeated_line.hpp"
#include "unit/net/server_fixture.hpp"

#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <sstream>

namespace gradsync::net {
namespace {

TEST(UidAllowed, root_and_the_daemon_itself_are_never_refused) {
  ServerOptions options;
  options.allow_any_uid = false;
  options.allowed_uids = {1000};
  EXPECT_TRUE(uid_allowed(0, 500, options));
  EXPECT_TRUE(uid_allowed(500, 500, options));
  EXPECT_TRUE(uid_allowed(1000, 500, options));
  EXPECT_FALSE(uid_allowed(1001, 500, options));
  options.allow_any_uid = true;
  EXPECT_TRUE(uid_allowed(1001, 500, options));
}

TEST(UidAllowed, the_refusal_names_the_uid_and_the_setting) {
  const Error error = uid_refused(1001, 500);
  EXPECT_EQ(error.code, ErrorCode::Unauthorized);
  EXPECT_NE(error.message.find("1001"), std::string::npos);
  EXPECT_NE(error.hint.find("allowed_uids"), std::string::npos);
}

/// Another process that connects when told to, closes when told to, and ends when told to. Forked before the server's
/// thread exists.
class OtherProcess {
 public:
  OtherProcess(const std::string& socket, std::string fd_socket, uid_t uid) {
    int orders[2];
    int answers[2];
    EXPECT_EQ(::pipe(orders), 0);
    EXPECT_EQ(::pipe(answers), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(orders[1]);
      ::close(answers[0]);
      ::_exit(live(socket, fd_socket, uid, orders[0], answers[1]));
    }
    ::close(orders[0]);
    ::close(answers[1]);
    orders_.reset(orders[1]);
    answers_.reset(answers[0]);
  }

  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  ~OtherProcess() { end(); }

  /// 'u' upgrades, 'f' asks the fd socket, 'c' closes. The answer is a text.
  std::string tell(char order) {
    EXPECT_EQ(::write(orders_.get(), &order, 1), 1);
    char text[1024] = {};
    const ssize_t got = ::read(answers_.get(), text, sizeof text);
    return std::string(text, got > 0 ? static_cast<std::size_t>(got) : 0);
  }

  void end() {
    orders_.reset();
    if (pid_ > 0) {
      ::waitpid(std::exchange(pid_, 0), nullptr, 0);
    }
  }

 private:
  static int live(const std::string& socket, const std::string& fd_socket, uid_t uid, int orders, int answers) {
    if (uid != ::getuid() && ::setuid(uid) != 0) {
      return 1;
    }
    std::vector<RawClient> clients;
    char order = 0;
    while (::read(orders, &order, 1) == 1) {
      std::string answer = "done";
      if (order == 'u') {
        clients.push_back(RawClient::unix_socket(socket));
        const HttpAnswer http = clients.back().upgrade("gradsync.v1.jsonrpc");
        answer = std::to_string(http.status) + " " + http.body;
      } else if (order == 'f') {
        RawClient client = RawClient::unix_socket(fd_socket);
        client.send("good\n");
        answer = client.read_line();
      } else {
        clients.clear();
      }
      if (::write(answers, answer.data(), answer.size()) < 0) {
        return 1;
      }
    }
    return 0;
  }

  pid_t pid_ = 0;
  UniqueFd orders_;
  UniqueFd answers_;
};

class PeerProcess : public ServerTest {
 protected:
  [[nodiscard]] std::unique_ptr<OtherProcess> other(uid_t uid = ::getuid()) const {
    return std::make_unique<OtherProcess>(folder / "gradsync.sock", folder / "gradsync.fd.sock", uid);
  }
};

TEST_F(PeerProcess, its_end_is_told_once_while_it_is_connected) {
  const auto process = other();
  RunningServer running{options()};
  ASSERT_EQ(process->tell('u').substr(0, 3), "101");
  process->end();
  EXPECT_TRUE(running.handlers.saw("exit 1"));
  EXPECT_TRUE(running.handlers.saw("close 1"));
  EXPECT_EQ(running.handlers.count("exit 1"), 1);
}

TEST_F(PeerProcess, its_end_is_told_also_after_it_closed) {
  const auto process = other();
  ServerOptions patient = options();
  patient.watch_after_close = Milliseconds(60'000);
  RunningServer running{patient};
  ASSERT_EQ(process->tell('u').substr(0, 3), "101");
  EXPECT_EQ(process->tell('c'), "done");
  ASSERT_TRUE(running.handlers.saw("close 1"));
  EXPECT_EQ(running.handlers.count("exit 1"), 0);
  process->end();
  EXPECT_TRUE(running.handlers.saw("exit 1"));
}

/// Descriptors of processes that this one holds.
std::size_t processes_held() {
  std::size_t held = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    held += std::filesystem::read_symlink(entry.path(), gone).string().find("pidfd") != std::string::npos ? 1 : 0;
  }
  return held;
}

TEST_F(PeerProcess, is_watched_after_it_closed_only_as_long_as_it_may_come_back) {
  const auto process = other();
  ServerOptions brief = options();
  brief.watch_after_close = Milliseconds(1000);
  RunningServer running{brief};
  const std::size_t before = processes_held();
  ASSERT_EQ(process->tell('u').substr(0, 3), "101");
  EXPECT_EQ(process->tell('c'), "done");
  ASSERT_TRUE(running.handlers.saw("close 1"));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (processes_held() > before && std::chrono::steady_clock::now() < deadline) {
    running.on_io([] {});
  }
  ASSERT_EQ(processes_held(), before) << "the descriptor is let go";
  process->end();
  const auto next = other();  // by the time its end is told, that of the first would have been
  ASSERT_EQ(next->tell('u').substr(0, 3), "101");
  next->end();
  EXPECT_TRUE(running.handlers.saw("exit 2"));
  EXPECT_EQ(running.handlers.count("exit 1"), 0);
}

TEST_F(PeerProcess, is_not_watched_after_it_closed_when_nobody_asks) {
  const auto process = other();
  RunningServer running{options()};
  running.on_io([&] { running.handlers.watch_on = false; });
  ASSERT_EQ(process->tell('u').substr(0, 3), "101");
  EXPECT_EQ(process->tell('c'), "done");
  ASSERT_TRUE(running.handlers.saw("close 1"));
  process->end();
  const auto next = other();  // by the time its end is told, that of the first would have been
  running.on_io([&] { running.handlers.watch_on = true; });
  ASSERT_EQ(next->tell('u').substr(0, 3), "101");
  next->end();
  EXPECT_TRUE(running.handlers.saw("exit 2"));
  EXPECT_EQ(running.handlers.count("exit 1"), 0);
}

TEST_F(PeerProcess, that_lives_is_not_reported_when_the_daemon_stops) {
  const auto process = other();
  RunningServer running{options()};
  ASSERT_EQ(process->tell('u').substr(0, 3), "101");
  running.on_io([&] { running.server.close_all(); });
  ASSERT_TRUE(running.handlers.saw("close 1"));
  EXPECT_EQ(running.handlers.count("exit 1"), 0);
}

TEST_F(PeerProcess, of_a_uid_that_is_not_allowed_is_refused_on_both_sockets) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, to become another user";
  }
  ASSERT_EQ(::chmod((folder / "").c_str(), 0755), 0);
  const auto process = other(65534);
  ServerOptions strict = options();
  strict.socket_mode = 0666;
  strict.allow_any_uid = false;
  strict.allowed_uids = {1000};
  RunningServer running{strict};
  const std::string http = process->tell('u');
  EXPECT_EQ(http.substr(0, 3), "403");
  EXPECT_NE(http.find("unauthorized: uid 65534"), std::string::npos) << http;
  EXPECT_NE(http.find("allowed_uids"), std::string::npos);
  const std::string line = process->tell('f');
  EXPECT_NE(line.find("\"unauthorized\""), std::string::npos) << line;
  EXPECT_EQ(running.metrics.refused_uid.Value(), 2);
}

TEST_F(PeerProcess, of_a_uid_that_is_not_allowed_fills_no_log_however_often_it_comes) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, to become another user";
  }
  constexpr int kTimes = 50;
  ASSERT_EQ(::chmod((folder / "").c_str(), 0755), 0);
  const auto process = other(65534);
  ServerOptions strict = options();
  strict.socket_mode = 0666;
  strict.allow_any_uid = false;
  strict.allowed_uids = {1000};
  testing::internal::CaptureStdout();
  const auto before = std::chrono::steady_clock::now();
  {
    RunningServer running{strict};
    for (int i = 0; i < kTimes; ++i) {
      EXPECT_EQ(process->tell('u').substr(0, 3), "403");
    }
    EXPECT_EQ(running.metrics.refused_uid.Value(), kTimes);
  }
  const bool in_time = std::chrono::steady_clock::now() < before + RepeatedLine::kEvery;
  const std::string log = testing::internal::GetCapturedStdout();
  if (!in_time) {
    GTEST_SKIP() << "the machine was too slow to refuse them all within the time of one line";
  }
  std::vector<std::string> lines;
  std::istringstream text{log};
  for (std::string line; std::getline(text, line);) {
    if (line.find("connection refused uid=65534") != std::string::npos) {
      lines.push_back(line);
    }
  }
  ASSERT_EQ(lines.size(), 2U) << log;
  EXPECT_EQ(lines[0].find("such lines"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("(49 such lines since the last one)"), std::string::npos) << lines[1];
}

TEST_F(PeerProcess, of_an_allowed_uid_is_known_by_it) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, to become another user";
  }
  ASSERT_EQ(::chmod((folder / "").c_str(), 0755), 0);
  const auto process = other(65534);
  ServerOptions strict = options();
  strict.socket_mode = 0666;
  strict.allow_any_uid = false;
  strict.allowed_uids = {65534};
  RunningServer running{strict};
  EXPECT_EQ(process->tell('u').substr(0, 3), "101");
  EXPECT_TRUE(running.handlers.saw("open 1 local=true uid=65534 token=none"));
}

}  // namespace
}  // namespace gradsync::net
