#include "net/limits/read_pace.hpp"

#include "unit/net/server_fixture.hpp"

#include <atomic>
#include <fstream>

namespace gradsync::net {
namespace {

/// Somebody else who is served all the time: by TCP, which the fair share takes for another process.
class Stepping {
 public:
  explicit Stepping(RawClient client) : client_(std::move(client)) {
    step();
    thread_ = std::thread([this] {
      while (!stop_ && step()) {
      }
    });
  }

  Stepping(const Stepping&) = delete;
  Stepping& operator=(const Stepping&) = delete;

  ~Stepping() {
    stop_ = true;
    thread_.join();
  }

 private:
  bool step() {
    client_.send_frame(1, "step");
    return client_.read_frame().payload == "step";
  }

  RawClient client_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

class ReadPaceTest : public ServerTest {
 protected:
  [[nodiscard]] ServerOptions tcp_options() const {
    std::ofstream(folder / "token") << "a-token-of-many-bytes";
    ::chmod((folder / "token").c_str(), 0600);
    ServerOptions tcp = options();
    tcp.tcp_address = "127.0.0.1:0";
    tcp.tcp_token_file = folder / "token";
    return tcp;
  }

  [[nodiscard]] static RawClient over_tcp(const RunningServer& running) {
    RawClient client = RawClient::tcp(running.server.tcp_endpoint());
    EXPECT_EQ(
        client.upgrade("gradsync.v1.jsonrpc", "/rpc", "Authorization: Bearer a-token-of-many-bytes\r\n").status, 101
    );
    return client;
  }

  /// Connections that each send what is costly and refused: this process then owes more than it earns in a while.
  /// Nobody waits where nobody else was served lately, because the machine let nobody else run: then others try again.
  [[nodiscard]] std::vector<RawClient> debtors(RunningServer& running, std::size_t count) {
    std::vector<RawClient> clients;
    for (int tries = 0; tries < kTries; ++tries) {
      clients.clear();
      // New connections wait for what was owed before, as a request does, which is refused where it waits for too long.
      for (int asked = 0; owed_ && asked < kTries && connect().request("GET", "/page").status != 200; ++asked) {
      }
      owed_ = true;
      while (clients.size() < count) {
        clients.push_back(connect());
        if (clients.back().upgrade("gradsync.v1.jsonrpc").status != 101) {
          clients.pop_back();  // refused for what was owed before
          break;
        }
      }
      if (clients.size() < count) {
        continue;
      }
      const double all = read_pauses(running) + static_cast<double>(count);
      for (RawClient& client : clients) {
        client.send_frame(1, "costly");
      }
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      while (read_pauses(running) < all && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
      if (read_pauses(running) >= all) {
        return clients;
      }
    }
    ADD_FAILURE() << "nobody waits for the share of the process";
    return clients;
  }

  /// Whether connections are read later while this process owes. It does so for a second only: a machine that was slow
  /// meanwhile is given more chances.
  [[nodiscard]] bool read_later(RunningServer& running, const std::function<void()>& send_and_read) {
    for (int tries = 0; tries < kTries && !HasFailure(); ++tries) {
      const std::vector<RawClient> owing = debtors(running, 3);
      const double before = read_pauses(running);
      send_and_read();
      if (read_pauses(running) > before) {
        return true;
      }
    }
    return false;
  }

  static constexpr int kTries = 20;

  [[nodiscard]] static double read_pauses(RunningServer& running) { return running.metrics.read_pauses.Value(); }

 private:
  bool owed_ = false;
};

constexpr int kMany = 1'000;

std::string frames(int count, int opcode, std::string_view payload) {
  std::string packet;
  for (int i = 0; i < count; ++i) {
    packet += static_cast<char>(opcode);
    packet += static_cast<char>(0x80 | static_cast<int>(payload.size()));
    packet += std::string(4, '\0') + std::string(payload);
  }
  return packet;
}

TEST_F(ReadPaceTest, pings_beside_others_are_read_later_and_answered_all) {
  RunningServer running{tcp_options()};
  const Stepping stepping{over_tcp(running)};
  RawClient client = websocket();
  EXPECT_TRUE(read_later(running, [&] {
    client.send(frames(kMany, 0x89, "?"));
    for (int i = 0; i < kMany; ++i) {
      ASSERT_EQ(client.read_frame().opcode, 10);
    }
  }));
}

TEST_F(ReadPaceTest, pings_are_not_made_to_wait_where_nobody_else_is_served) {
  RunningServer running{options()};
  RawClient client = websocket();
  client.send(frames(kMany, 0x89, "?"));
  for (int i = 0; i < kMany; ++i) {
    ASSERT_EQ(client.read_frame().opcode, 10);
  }
  EXPECT_EQ(read_pauses(running), 0);
}

TEST_F(ReadPaceTest, small_fragments_beside_others_are_read_later) {
  RunningServer running{tcp_options()};
  const Stepping stepping{over_tcp(running)};
  RawClient client = websocket();
  EXPECT_TRUE(read_later(running, [&] {
    client.send_frame(1, "begin", false);
    client.send(frames(kMany, 0x00, "-"));
    client.send_frame(0, "end");
    EXPECT_EQ(client.read_frame().payload.size(), 8U + kMany);
  }));
}

TEST_F(ReadPaceTest, a_ping_that_keeps_a_connection_alive_never_waits) {
  RunningServer running{tcp_options()};
  const Stepping stepping{over_tcp(running)};
  RawClient quiet = websocket();
  const std::vector<RawClient> owing = debtors(running, 8);  // four seconds of waiting
  const double before = read_pauses(running);
  quiet.send_frame(9, "are you there");
  EXPECT_EQ(quiet.read_frame().payload, "are you there");
  quiet.send_frame(1, "text");
  EXPECT_EQ(quiet.read_frame().payload, "text");
  EXPECT_EQ(read_pauses(running), before);
}

TEST_F(ReadPaceTest, a_connection_that_waits_for_too_long_is_closed_with_the_reason) {
  ServerOptions hasty = tcp_options();
  hasty.message_timeout = Milliseconds(50);
  RunningServer running{hasty};
  const Stepping stepping{over_tcp(running)};
  for (int tries = 0; tries < kTries && !HasFailure(); ++tries) {
    std::vector<RawClient> owing = debtors(running, 1);
    owing.front().send_frame(1, "paid");
    const Frame close = owing.front().read_frame();
    if (close.payload == "paid") {
      continue;  // the machine was slow: what it owed was earned before anybody looked
    }
    EXPECT_EQ(close.opcode, 8);
    EXPECT_EQ(close.close_code(), 1013);
    EXPECT_NE(close.payload.find("limit_exceeded: this process used more than its share"), std::string::npos);
    EXPECT_NE(close.payload.find("for 50 ms"), std::string::npos) << close.payload;
    EXPECT_TRUE(owing.front().at_end());
    return;
  }
  ADD_FAILURE() << "no connection was closed";
}

TEST_F(ReadPaceTest, a_request_that_waits_for_too_long_is_refused_with_the_reason) {
  ServerOptions hasty = tcp_options();
  hasty.handshake_timeout = Milliseconds(500);
  RunningServer running{hasty};
  const Stepping stepping{over_tcp(running)};
  HttpAnswer answer;
  for (int tries = 0; tries < kTries && answer.status != 503 && !HasFailure(); ++tries) {
    const std::vector<RawClient> owing = debtors(running, 8);
    answer = connect().request("GET", "/page");  // 200 where the machine was slow and all was earned meanwhile
  }
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(answer.body.find("limit_exceeded: this process used more than its share"), std::string::npos);
  EXPECT_NE(answer.body.find("for 500 ms"), std::string::npos) << answer.body;
}

TEST_F(ReadPaceTest, those_who_wait_are_told_that_the_daemon_shuts_down) {
  RunningServer running{tcp_options()};
  const Stepping stepping{over_tcp(running)};
  std::vector<RawClient> owing = debtors(running, 1);
  running.on_io([&] { running.server.close_all(); });
  EXPECT_EQ(owing.front().read_frame().close_code(), 1001);
  EXPECT_TRUE(owing.front().at_end());
}

}  // namespace
}  // namespace gradsync::net
