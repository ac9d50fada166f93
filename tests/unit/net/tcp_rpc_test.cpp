// RPC and pages over TCP: who has which token, and what it allows.

#include "unit/net/server_fixture.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace gradsync::net {
namespace {

constexpr const char* kJsonBody = "Content-Type: application/json\r\n";
constexpr const char* kOperatorToken = "0123456789abcdef0123456789abcdef";
constexpr const char* kReaderToken = "fedcba9876543210fedcba9876543210";

class TcpRpc : public ServerTest {
 protected:
  void write_token(const std::string& name, const std::string& token, mode_t mode = 0640) const {
    std::ofstream{folder / name} << token << "\n";
    ASSERT_EQ(::chmod((folder / name).c_str(), mode), 0);
  }

  [[nodiscard]] ServerOptions tcp_options() const {
    write_token("token", kOperatorToken);
    ServerOptions tcp = options();
    tcp.tcp_address = "127.0.0.1:0";
    tcp.tcp_token_file = folder / "token";
    return tcp;
  }

  [[nodiscard]] ServerOptions two_roles() const {
    write_token("read-token", kReaderToken);
    ServerOptions tcp = tcp_options();
    tcp.tcp_read_token_file = folder / "read-token";
    return tcp;
  }

  /// As if the file had been there for long: a change shows in its times.
  void make_old(const std::string& name) const {
    const timespec times[2] = {{1'700'000'000, 0}, {1'700'000'000, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (folder / name).c_str(), times, 0), 0);
  }

  static std::string bearer_of(const std::string& token) { return "Authorization: Bearer " + token + "\r\n"; }

  std::string bearer = std::string("Authorization: Bearer ") + kOperatorToken + "\r\n";
};

TEST_F(TcpRpc, asks_for_the_token_before_anything_else) {
  RunningServer running{tcp_options()};
  RawClient client = RawClient::tcp(running.server.tcp_endpoint());
  for (const char* headers : {"", "Authorization: Bearer 0123456789abcdef0123456789abcdeX\r\n"}) {
    const HttpAnswer answer = client.request("POST", "/rpc", std::string(kJsonBody) + headers, "body");
    EXPECT_EQ(answer.status, 401);
    EXPECT_EQ(answer.headers.at("www-authenticate"), "Bearer");
  }
  EXPECT_EQ(client.request("GET", "/page").status, 401);
  EXPECT_EQ(client.upgrade("gradsync.v1.jsonrpc").status, 401);
  EXPECT_EQ(running.metrics.refused_token.Value(), 4);
}

TEST_F(TcpRpc, serves_who_has_the_token) {
  RunningServer running{tcp_options()};
  RawClient client = RawClient::tcp(running.server.tcp_endpoint());
  EXPECT_EQ(client.request("POST", "/rpc", kJsonBody + bearer, "body").body, "false operator body");
  EXPECT_EQ(client.request("GET", "/page", bearer).body, "query= trusted=true");
  EXPECT_EQ(client.upgrade("gradsync.v1.jsonrpc", "/rpc", bearer).status, 101);
  client.send_frame(1, "over tcp");
  EXPECT_EQ(client.read_frame().payload, "over tcp");
  EXPECT_TRUE(running.handlers.saw("open 1 local=false uid=0 token=operator"));
}

TEST_F(TcpRpc, shows_who_has_no_token_the_page_that_asks_for_one_and_nothing_else) {
  const RunningServer running{tcp_options()};
  RawClient client = RawClient::tcp(running.server.tcp_endpoint());
  const HttpAnswer file = client.request("GET", "/file", "Accept: text/css\r\n");
  EXPECT_EQ(file.body, "accept=text/css trusted=false");
  EXPECT_EQ(file.headers.at("content-security-policy"), "default-src 'none'");
  EXPECT_EQ(file.headers.at("x-content-type-options"), "nosniff");
  EXPECT_EQ(client.request("GET", "/page", bearer).body, "query= trusted=true");
  EXPECT_EQ(client.request("GET", "/file").body, "accept= trusted=false") << "the token was that of another request";
  EXPECT_EQ(client.request("POST", "/file").status, 401);
  EXPECT_EQ(client.request("GET", "/", "Accept: text/plain\r\n").status, 401);
  EXPECT_EQ(client.upgrade("gradsync.v1.jsonrpc", "/", "Accept: text/html\r\n").status, 401);
}

TEST_F(TcpRpc, refuses_pages_of_other_origins_even_with_the_token) {
  const RunningServer running{tcp_options()};
  RawClient client = RawClient::tcp(running.server.tcp_endpoint());
  EXPECT_EQ(client.upgrade("gradsync.v1.jsonrpc", "/rpc", bearer + "Origin: http://evil.example\r\n").status, 403);
  EXPECT_EQ(client.upgrade("gradsync.v1.jsonrpc", "/rpc", bearer + "Origin: http://localhost\r\n").status, 101);
}

TEST_F(TcpRpc, tells_readers_from_operators) {
  const RunningServer running{two_roles()};
  RawClient client = RawClient::tcp(running.server.tcp_endpoint());
  const std::string reader = bearer_of(kReaderToken);
  EXPECT_EQ(client.request("POST", "/rpc", kJsonBody + reader, "body").body, "false reader body");
  EXPECT_EQ(client.request("POST", "/rpc", kJsonBody + bearer, "body").body, "false operator body");
  EXPECT_EQ(client.request("GET", "/page", reader).body, "query= trusted=true");
  const HttpAnswer refused = client.request("GET", "/page");
  EXPECT_EQ(refused.status, 401);
  EXPECT_NE(refused.body.find("[server] tcp_token_file"), std::string::npos) << refused.body;
  EXPECT_NE(refused.body.find("[server] tcp_read_token_file to read only"), std::string::npos) << refused.body;
}

TEST_F(TcpRpc, serves_readers_alone) {
  ServerOptions tcp = two_roles();
  tcp.tcp_token_file.clear();
  const RunningServer running{tcp};
  RawClient client = RawClient::tcp(running.server.tcp_endpoint());
  EXPECT_EQ(client.request("POST", "/rpc", kJsonBody + bearer_of(kReaderToken), "body").body, "false reader body");
  EXPECT_EQ(client.request("POST", "/rpc", kJsonBody + bearer, "body").status, 401);
}

TEST_F(TcpRpc, gives_what_is_the_same_for_every_daemon_to_everybody) {
  const RunningServer running{tcp_options()};
  RawClient client = RawClient::tcp(running.server.tcp_endpoint());
  EXPECT_EQ(client.request("GET", "/shell").body, "query= trusted=false");
  EXPECT_EQ(client.request("POST", "/shell", kJsonBody, "body").status, 401);
  EXPECT_EQ(client.upgrade("gradsync.v1.jsonrpc", "/shell").status, 401);
  EXPECT_EQ(client.request("GET", "/metrics").status, 401);
  EXPECT_EQ(client.request("GET", "/nowhere").status, 401);
}

TEST_F(TcpRpc, trusts_a_request_and_not_the_connection_that_it_came_over) {
  const RunningServer running{tcp_options()};
  RawClient probe = RawClient::tcp(running.server.health_endpoint());
  EXPECT_EQ(probe.request("GET", "/page", bearer).body, "query= trusted=true");
  EXPECT_EQ(probe.request("GET", "/page").body, "query= trusted=false") << "of another user behind the same proxy";
}

TEST_F(TcpRpc, the_health_port_shows_jobs_with_a_token_only) {
  RunningServer running{two_roles()};
  RawClient probe = RawClient::tcp(running.server.health_endpoint());
  EXPECT_EQ(probe.request("GET", "/page").body, "query= trusted=false");
  EXPECT_EQ(probe.request("GET", "/page", bearer_of(kReaderToken)).body, "query= trusted=true");
  EXPECT_EQ(probe.request("GET", "/page", bearer_of("a-token-that-nobody-gave")).status, 401);
  EXPECT_EQ(running.metrics.refused_token.Value(), 1);
  EXPECT_EQ(probe.request("GET", "/page", bearer + "Origin: http://evil.example\r\n").status, 403);
  EXPECT_EQ(probe.request("GET", "/metrics", bearer_of("a-token-that-nobody-gave")).status, 200) << "open, as ever";
  EXPECT_EQ(probe.request("POST", "/rpc", kJsonBody + bearer, "body").status, 405);
}

TEST_F(TcpRpc, a_token_that_is_replaced_counts_at_once) {
  const RunningServer running{tcp_options()};
  RawClient client = RawClient::tcp(running.server.tcp_endpoint());
  const std::string another = "another-token-of-the-same-length";
  ASSERT_EQ(another.size(), std::string_view(kOperatorToken).size());
  for (const bool in_place : {true, false}) {
    write_token("token", kOperatorToken);
    make_old("token");
    EXPECT_EQ(client.request("GET", "/page", bearer).status, 200);
    write_token(in_place ? "token" : "new", another);
    if (!in_place) {
      std::filesystem::rename(folder / "new", folder / "token");
      make_old("token");
    }
    EXPECT_EQ(client.request("GET", "/page", bearer).status, 401);
    EXPECT_EQ(client.request("GET", "/page", bearer_of(another)).status, 200);
  }
}

TEST_F(TcpRpc, a_token_that_cannot_be_used_any_more_lets_nobody_in) {
  const RunningServer running{tcp_options()};
  RawClient client = RawClient::tcp(running.server.tcp_endpoint());
  make_old("token");
  EXPECT_EQ(client.request("GET", "/page", bearer).status, 200);
  ASSERT_EQ(::chmod((folder / "token").c_str(), 0644), 0);
  EXPECT_EQ(client.request("GET", "/page", bearer).status, 401) << "others may have read it";
  ASSERT_EQ(::chmod((folder / "token").c_str(), 0600), 0);
  EXPECT_EQ(client.request("GET", "/page", bearer).status, 200);
  std::filesystem::remove(folder / "token");
  EXPECT_EQ(client.request("GET", "/page", bearer).status, 401);
  EXPECT_EQ(client.request("GET", "/page", "Authorization: Bearer \r\n").status, 401);
  write_token("token", kOperatorToken);
  EXPECT_EQ(client.request("GET", "/page", bearer).status, 200);
}

TEST_F(TcpRpc, a_websocket_ends_with_the_token_that_opened_it) {
  const RunningServer running{tcp_options()};
  RawClient client = RawClient::tcp(running.server.tcp_endpoint());
  ASSERT_EQ(client.upgrade("gradsync.v1.jsonrpc", "/rpc", bearer).status, 101);
  client.send_frame(1, "before");
  EXPECT_EQ(client.read_frame().payload, "before");
  write_token("token", "another-token-that-is-longer-than-the-first");
  client.send_frame(1, "after");
  const Frame closed = client.read_frame();
  EXPECT_EQ(closed.opcode, 8);
  EXPECT_EQ(closed.close_code(), 1008);
  EXPECT_NE(closed.payload.find("unauthorized"), std::string::npos);
}

TEST_F(TcpRpc, does_not_start_with_one_token_for_both_roles) {
  const ServerOptions both = two_roles();
  write_token("read-token", kOperatorToken);
  const RunningServer running{both, false};
  ASSERT_TRUE(running.failure.has_value());
  EXPECT_EQ(running.failure->kind, StartFailure::Kind::Configuration);
  EXPECT_NE(running.failure->message.find("have the same token"), std::string::npos) << running.failure->message;
}

TEST_F(TcpRpc, files_that_come_to_have_one_token_make_its_holder_a_reader) {
  const RunningServer running{two_roles()};
  RawClient client = RawClient::tcp(running.server.tcp_endpoint());
  write_token("read-token", kOperatorToken);
  EXPECT_EQ(client.request("POST", "/rpc", kJsonBody + bearer, "body").body, "false reader body");
}

TEST_F(TcpRpc, a_token_is_read_where_only_the_health_port_needs_it) {
  ServerOptions health = tcp_options();
  health.tcp_address.clear();
  const RunningServer running{health};
  RawClient probe = RawClient::tcp(running.server.health_endpoint());
  EXPECT_EQ(probe.request("GET", "/page", bearer).body, "query= trusted=true");
  EXPECT_EQ(running.server.tcp_endpoint(), "");
}

TEST_F(TcpRpc, does_not_start_with_a_token_that_others_may_use) {
  const ServerOptions shared = tcp_options();
  ASSERT_EQ(::chmod(shared.tcp_token_file.c_str(), 0644), 0);
  const RunningServer running{shared, false};
  ASSERT_TRUE(running.failure.has_value());
  EXPECT_EQ(running.failure->kind, StartFailure::Kind::Configuration);
  EXPECT_NE(running.failure->message.find("has mode 0644: others may use it"), std::string::npos);
}

TEST_F(TcpRpc, does_not_start_with_a_token_of_another_user) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "giving a file away needs root";
  }
  const ServerOptions strange = tcp_options();
  ASSERT_EQ(::chown(strange.tcp_token_file.c_str(), 4711, 4711), 0);
  const RunningServer running{strange, false};
  ASSERT_TRUE(running.failure.has_value());
  EXPECT_EQ(running.failure->kind, StartFailure::Kind::Configuration);
  EXPECT_NE(running.failure->message.find("belongs to uid 4711"), std::string::npos) << running.failure->message;
}

TEST_F(TcpRpc, does_not_start_without_a_usable_token) {
  ServerOptions missing = tcp_options();
  missing.tcp_token_file = folder / "nothing";
  const RunningServer running{missing, false};
  ASSERT_TRUE(running.failure.has_value());
  EXPECT_EQ(running.failure->kind, StartFailure::Kind::Configuration);
  EXPECT_NE(running.failure->message.find("nothing"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(missing.socket_path));
}

}  // namespace
}  // namespace gradsync::net
