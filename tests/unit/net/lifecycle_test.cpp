#include "net/socket/listening_socket.hpp"
#include "unit/net/server_fixture.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <fstream>

namespace gradsync::net {
namespace {

namespace fs = std::filesystem;

class Lifecycle : public ServerTest {
 protected:
  /// A socket file whose owner died.
  static void leave_stale_socket(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    const UniqueFd fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
};

TEST_F(Lifecycle, replaces_stale_sockets) {
  leave_stale_socket(folder / "gradsync.sock");
  leave_stale_socket(folder / "gradsync.fd.sock");
  const RunningServer running{options()};
  RawClient client = connect();
  EXPECT_EQ(client.request("GET", "/page").status, 200);
}

TEST_F(Lifecycle, a_lock_on_the_folder_keeps_no_daemon_from_starting) {
  // Anybody who may read the folder can lock it.
  const UniqueFd stranger{::open((folder / "").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  ASSERT_EQ(::flock(stranger.get(), LOCK_EX), 0);
  leave_stale_socket(folder / "gradsync.sock");
  const auto held = hold_socket(folder / "gradsync.sock", Milliseconds(0), [] { return false; });
  ASSERT_TRUE(std::holds_alternative<UniqueFd>(held));
  const RunningServer running{options()};
  RawClient client = connect();
  EXPECT_EQ(client.request("GET", "/page").status, 200);
}

TEST_F(Lifecycle, a_successor_waits_for_the_lock_of_the_daemon_before_it) {
  const std::string path = folder / "gradsync.sock";
  auto held = hold_socket(path, Milliseconds(0), [] { return false; });
  ASSERT_TRUE(std::holds_alternative<UniqueFd>(held));
  int asked = 0;
  const auto next = hold_socket(path, Milliseconds(60'000), [&] {
    if (++asked == 2) {
      held = UniqueFd{};  // it ended
    }
    return false;
  });
  EXPECT_TRUE(std::holds_alternative<UniqueFd>(next));
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(fs::status(path + ".lock").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(Lifecycle, a_daemon_that_does_not_end_is_not_waited_for_longer_than_said) {
  const std::string path = folder / "gradsync.sock";
  const auto held = hold_socket(path, Milliseconds(0), [] { return false; });
  ASSERT_TRUE(std::holds_alternative<UniqueFd>(held));
  for (const bool interrupted : {false, true}) {
    const auto next = hold_socket(path, Milliseconds(interrupted ? 60'000 : 30), [&] { return interrupted; });
    ASSERT_TRUE(std::holds_alternative<StartFailure>(next));
    EXPECT_EQ(std::get<StartFailure>(next).kind, StartFailure::Kind::InUse);
    EXPECT_NE(std::get<StartFailure>(next).message.find(path + ".lock"), std::string::npos);
  }
}

TEST_F(Lifecycle, beside_one_that_answers_nobody_waits) {
  const std::string path = folder / "gradsync.sock";
  const auto held = hold_socket(path, Milliseconds(0), [] { return false; });
  const RunningServer first{options()};
  const auto next = hold_socket(path, Milliseconds(60'000), [] {
    ADD_FAILURE() << "it waits";
    return true;
  });
  ASSERT_TRUE(std::holds_alternative<StartFailure>(next));
  EXPECT_NE(std::get<StartFailure>(next).message.find("already answering"), std::string::npos);
}

TEST_F(Lifecycle, a_lock_file_that_others_may_open_becomes_private) {
  const fs::path lock = folder / "gradsync.sock.lock";
  const UniqueFd before{::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)};
  ASSERT_EQ(::fchmod(before.get(), 0666), 0);
  const auto held = hold_socket(folder / "gradsync.sock", Milliseconds(0), [] { return false; });
  EXPECT_TRUE(std::holds_alternative<UniqueFd>(held));
  EXPECT_EQ(fs::status(lock).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(Lifecycle, a_lock_file_of_another_user_is_refused) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "giving a file away needs root";
  }
  const fs::path lock = folder / "gradsync.sock.lock";
  const UniqueFd strange{::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
  ASSERT_EQ(::fchown(strange.get(), 4711, 4711), 0);
  const auto refused = hold_socket(folder / "gradsync.sock", Milliseconds(0), [] { return false; });
  ASSERT_TRUE(std::holds_alternative<StartFailure>(refused));
  EXPECT_NE(std::get<StartFailure>(refused).message.find("belongs to uid 4711"), std::string::npos);
}

TEST_F(Lifecycle, a_lock_file_that_cannot_be_made_is_named) {
  fs::create_symlink(folder / "elsewhere", folder / "gradsync.sock.lock");
  const auto refused = hold_socket(folder / "gradsync.sock", Milliseconds(0), [] { return false; });
  ASSERT_TRUE(std::holds_alternative<StartFailure>(refused));
  EXPECT_NE(std::get<StartFailure>(refused).message.find("gradsync.sock.lock"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder / "elsewhere"));
}

TEST_F(Lifecycle, leaves_the_sockets_of_a_live_daemon_alone) {
  const RunningServer first{options()};
  {
    const RunningServer second{options(), false};
    ASSERT_TRUE(second.failure.has_value());
    EXPECT_EQ(second.failure->kind, StartFailure::Kind::InUse);
    EXPECT_NE(second.failure->message.find(folder / "gradsync.sock"), std::string::npos);
    EXPECT_NE(second.failure->message.find("already answering"), std::string::npos);
  }
  RawClient client = connect();
  EXPECT_EQ(client.request("GET", "/page").status, 200);
}

TEST_F(Lifecycle, never_removes_a_file_that_is_no_socket) {
  std::ofstream{folder / "gradsync.sock"} << "precious";
  const RunningServer running{options(), false};
  ASSERT_TRUE(running.failure.has_value());
  EXPECT_EQ(running.failure->kind, StartFailure::Kind::Configuration);
  EXPECT_TRUE(fs::is_regular_file(folder / "gradsync.sock"));
}

TEST_F(Lifecycle, creates_the_last_directory_of_the_path_but_not_more) {
  const auto never = [] { return false; };
  EXPECT_TRUE(std::holds_alternative<UniqueFd>(hold_socket(folder / "run/gradsync.sock", Milliseconds(0), never)));
  EXPECT_TRUE(fs::is_directory(folder / "run"));
  const auto refused = hold_socket(folder / "no/such/gradsync.sock", Milliseconds(0), never);
  ASSERT_TRUE(std::holds_alternative<StartFailure>(refused));
  EXPECT_NE(std::get<StartFailure>(refused).message.find(folder / "no/such"), std::string::npos);
}

TEST_F(Lifecycle, a_path_too_long_for_a_socket_is_named_with_its_length) {
  ServerOptions long_path = options();
  long_path.socket_path = folder / (std::string(120, 'x') + ".sock");
  const RunningServer running{long_path, false};
  ASSERT_TRUE(running.failure.has_value());
  EXPECT_NE(running.failure->message.find("107"), std::string::npos) << running.failure->message;
}

TEST_F(Lifecycle, both_sockets_have_the_mode_that_was_asked) {
  ServerOptions shared = options();
  shared.socket_mode = 0606;
  const RunningServer running{shared};
  for (const char* name : {"gradsync.sock", "gradsync.fd.sock"}) {
    struct stat found {};

    ASSERT_EQ(::stat((folder / name).c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0606u);
  }
}

TEST_F(Lifecycle, stopping_removes_both_files_and_keeps_connections_and_health) {
  RunningServer running{options()};
  RawClient client = websocket();
  running.on_io([&] { running.server.stop_accepting(); });
  EXPECT_FALSE(fs::exists(folder / "gradsync.sock"));
  EXPECT_FALSE(fs::exists(folder / "gradsync.fd.sock"));
  client.send_frame(1, "still here");
  EXPECT_EQ(client.read_frame().payload, "still here");
  RawClient probe = RawClient::tcp(running.server.health_endpoint());
  EXPECT_EQ(probe.request("GET", "/page").status, 200);
}

TEST_F(Lifecycle, stopping_leaves_files_that_another_daemon_put_there) {
  RunningServer running{options()};
  fs::remove(folder / "gradsync.sock");
  leave_stale_socket(folder / "gradsync.sock");
  running.on_io([&] { running.server.stop_accepting(); });
  EXPECT_TRUE(fs::exists(folder / "gradsync.sock"));
  EXPECT_FALSE(fs::exists(folder / "gradsync.fd.sock"));
}

TEST_F(Lifecycle, an_address_that_is_none_is_a_fault_of_the_configuration) {
  std::ofstream{folder / "token"} << std::string(32, 't');
  fs::permissions(folder / "token", fs::perms::owner_read);
  for (const char* address : {"9478", "127.0.0.1:", "127.0.0.1:70000", "node7:9478", "127.0.0.1:-1"}) {
    ServerOptions tcp = options();
    tcp.tcp_token_file = folder / "token";
    tcp.tcp_address = address;
    const RunningServer running{tcp, false};
    ASSERT_TRUE(running.failure.has_value()) << address;
    EXPECT_EQ(running.failure->kind, StartFailure::Kind::Configuration);
    EXPECT_NE(running.failure->message.find(address), std::string::npos);
  }
}

/// Uses up all descriptors of this process until it is destroyed.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit few = before_;
    few.rlim_cur = 128;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    for (UniqueFd fd{::dup(0)}; fd.valid(); fd = UniqueFd{::dup(0)}) {
      taken_.push_back(std::move(fd));
    }
  }

  NoDescriptorsLeft(const NoDescriptorsLeft&) = delete;
  NoDescriptorsLeft& operator=(const NoDescriptorsLeft&) = delete;

  ~NoDescriptorsLeft() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<UniqueFd> taken_;
};

TEST_F(Lifecycle, running_out_of_descriptors_pauses_accepting_and_loses_nobody) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan's check of a dynamic type needs free descriptors itself";
#endif
  RunningServer running{options()};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = folder / "gradsync.sock";
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  UniqueFd socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  {
    const NoDescriptorsLeft none;
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (running.metrics.accept_pauses.Value() == 0 && std::chrono::steady_clock::now() < deadline) {
      running.on_io([] {});
    }
    EXPECT_GE(running.metrics.accept_pauses.Value(), 1);
  }
  RawClient client{std::move(socket)};
  EXPECT_EQ(client.request("GET", "/page").status, 200);
}

TEST_F(Lifecycle, a_loop_that_is_stopped_in_the_middle_leaves_nothing_behind) {
  const RawClient open = [&] {
    RunningServer running{options()};
    RawClient client = websocket();
    client.send_frame(1, "text");
    EXPECT_EQ(client.read_frame().payload, "text");
    RawClient half = connect();
    half.send("GET /page HT");
    running.stop_at_once();
    return client;
  }();
  EXPECT_FALSE(fs::exists(folder / "gradsync.sock"));
}

TEST_F(Lifecycle, counts_what_it_serves) {
  RunningServer running{options()};
  RawClient client = websocket();
  client.send_frame(1, "four");
  EXPECT_EQ(client.read_frame().payload, "four");
  ASSERT_TRUE(running.handlers.saw("drained 1 true"));
  EXPECT_EQ(running.metrics.connections.Value(), 1);
  EXPECT_EQ(running.metrics.accepted.Value(), 1);
  EXPECT_EQ(running.metrics.received_bytes.Value(), 4);
  EXPECT_EQ(running.metrics.sent_bytes.Value(), 4);
}

}  // namespace
}  // namespace gradsync::net
