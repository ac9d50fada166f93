#include "unit/net/peer/peer_fixture.hpp"

#include <spdlog/spdlog.h>

#include <random>

namespace gradsync::net {
namespace {

constexpr const char* kPeerProtocol = "gradsync.peer.v1.jsonrpc";

using PeerListener = PeerTest;

TEST_F(PeerListener, asks_for_the_token_before_anything_else) {
  PeerDaemon daemon{options()};
  const std::string token = kPeerToken;
  for (const std::string& headers :
       {std::string(),
        bearer(token.substr(1)),
        bearer(token + "0"),
        bearer("0123456789abcdef0123456789abcdeX"),
        "Authorization: Basic " + token + "\r\n"}) {
    RawClient client = RawClient::tcp(daemon.endpoint());
    const HttpAnswer answer = client.upgrade(kPeerProtocol, "/peer", headers);
    EXPECT_EQ(answer.status, 401) << headers;
    EXPECT_EQ(answer.headers.at("www-authenticate"), "Bearer");
    EXPECT_NE(answer.body.find("[peer] token_file"), std::string::npos) << answer.body;
    EXPECT_TRUE(client.at_end()) << "it may ask once";
  }
  RawClient elsewhere = RawClient::tcp(daemon.endpoint());
  EXPECT_EQ(elsewhere.request("GET", "/nothing").status, 401);
  EXPECT_EQ(daemon.metrics.refused_token.Value(), 6);
  EXPECT_EQ(daemon.sink.open_count(), 0u);
}

TEST_F(PeerListener, opens_a_link_for_a_daemon_that_knows_the_token) {
  PeerDaemon daemon{options()};
  RawClient client = RawClient::tcp(daemon.endpoint());
  const HttpAnswer answer = client.upgrade(std::string("other, ") + kPeerProtocol, "/peer", bearer());
  EXPECT_EQ(answer.status, 101);
  EXPECT_EQ(answer.headers.at("sec-websocket-protocol"), kPeerProtocol);
  EXPECT_FALSE(answer.headers.contains("sec-websocket-extensions"));
  const LinkId link = daemon.sink.opened();
  EXPECT_EQ(link, 1u);
  const LinkEnds ends = daemon.sink.ends_of(link);
  EXPECT_TRUE(ends.accepted);
  EXPECT_EQ(ends.own_address, "127.0.0.1");
  EXPECT_EQ(ends.other_address, "127.0.0.1");
  client.send_frame(1, "to the daemon");
  EXPECT_EQ(daemon.sink.texts(link, 1), std::vector<std::string>{"to the daemon"});
  daemon.send(link, "from the daemon");
  EXPECT_EQ(client.read_frame().payload, "from the daemon");
}

TEST_F(PeerListener, has_nothing_but_links) {
  PeerDaemon daemon{options()};

  struct Asked {
    const char* verb;
    const char* target;
    std::string body;
    int status;
  };

  for (const Asked& asked :
       {Asked{"GET", "/peer", "", 426},
        Asked{"GET", "/peer?x=1", "", 426},
        Asked{"GET", "/", "", 404},
        Asked{"GET", "/page", "", 404},
        Asked{"GET", "/metrics", "", 404},
        Asked{"POST", "/rpc", "", 404},
        Asked{"POST", "/rpc", "{}", 413},
        Asked{"POST", "/peer", std::string(1 << 20, 'x'), 413}}) {
    RawClient client = RawClient::tcp(daemon.endpoint());
    const HttpAnswer answer = client.request(asked.verb, asked.target, bearer(), asked.body);
    EXPECT_EQ(answer.status, asked.status) << asked.verb << ' ' << asked.target << ' ' << answer.body;
    if (asked.status == 426) {
      EXPECT_EQ(answer.headers.at("upgrade"), "websocket");
    }
  }
  EXPECT_EQ(daemon.sink.open_count(), 0u);
}

TEST_F(PeerListener, has_links_at_one_path_with_one_subprotocol) {
  PeerDaemon daemon{options()};
  for (const char* path : {"/", "/rpc", "/peers", "/peer/"}) {
    RawClient client = RawClient::tcp(daemon.endpoint());
    EXPECT_EQ(client.upgrade(kPeerProtocol, path, bearer()).status, 404) << path;
  }
  for (const char* protocol : {"", "gradsync.v1.jsonrpc", "gradsync.peer.v2.jsonrpc"}) {
    RawClient client = RawClient::tcp(daemon.endpoint());
    const HttpAnswer answer = client.upgrade(protocol, "/peer", bearer());
    EXPECT_EQ(answer.status, 400) << protocol;
    EXPECT_NE(answer.body.find("supported: gradsync.peer.v1.jsonrpc"), std::string::npos) << answer.body;
  }
  EXPECT_EQ(daemon.sink.open_count(), 0u);
}

TEST_F(PeerListener, is_the_only_entrance_of_links) {
  const PeerDaemon daemon{options()};
  RawClient client = RawClient::unix_socket(folder / "a.sock");
  EXPECT_EQ(client.upgrade(kPeerProtocol, "/peer", bearer()).status, 404);
}

TEST_F(PeerListener, refuses_a_web_page_even_with_the_token) {
  const PeerDaemon daemon{options()};
  RawClient client = RawClient::tcp(daemon.endpoint());
  EXPECT_EQ(client.upgrade(kPeerProtocol, "/peer", bearer() + "Origin: http://evil.example\r\n").status, 403);
}

TEST_F(PeerListener, closes_a_handshake_that_takes_too_long) {
  ServerOptions impatient = options();
  impatient.handshake_timeout = Milliseconds{100};
  const PeerDaemon daemon{impatient};
  RawClient silent = RawClient::tcp(daemon.endpoint());
  RawClient slow = RawClient::tcp(daemon.endpoint());
  slow.send("GET /peer HTTP/1.1\r\nHost: no");
  EXPECT_TRUE(silent.at_end());
  EXPECT_TRUE(slow.at_end());
}

TEST_F(PeerListener, survives_strangers_that_send_anything) {
  PeerDaemon daemon{options()};
  RawClient good = link_to(daemon);
  std::mt19937 random{7};
  for (int i = 0; i < 50; ++i) {
    RawClient stranger = RawClient::tcp(daemon.endpoint());
    std::string bytes(random() % 4096, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    stranger.send(i % 2 == 0 ? bytes : "GET /peer HTTP/1.1\r\n" + bytes + "\r\n\r\n");
  }
  RawClient headers = RawClient::tcp(daemon.endpoint());
  EXPECT_EQ(headers.request("GET", "/peer", "X: " + std::string(64 * 1024, 'x') + "\r\n").status, 431);
  good.send_frame(1, "still here");
  EXPECT_EQ(daemon.sink.texts(1, 1), std::vector<std::string>{"still here"});
  EXPECT_EQ(daemon.sink.open_count(), 1u);
}

TEST_F(PeerListener, gives_a_stranger_the_place_of_the_oldest_of_its_address) {
  PeerDaemon daemon{options()};
  std::vector<RawClient> strangers;
  for (int i = 0; i < 16; ++i) {
    strangers.push_back(RawClient::tcp(daemon.endpoint()));
  }
  RawClient good = link_to(daemon);
  EXPECT_EQ(daemon.sink.opened(), 1u);
  EXPECT_TRUE(strangers.front().at_end());
  EXPECT_EQ(strangers.back().request("GET", "/peer").status, 401) << "the others have their places";
}

TEST_F(PeerListener, has_sixteen_links_of_an_address_that_have_not_joined) {
  PeerDaemon daemon{options()};
  std::vector<RawClient> clients;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(link_to(daemon));
  }
  RawClient refused = RawClient::tcp(daemon.endpoint());
  const HttpAnswer answer = refused.read_answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(answer.body.find("16 of this address"), std::string::npos) << answer.body;
  daemon.join(daemon.sink.opened(1));
  const RawClient next = link_to(daemon);
  EXPECT_EQ(daemon.sink.opened(17), 17u) << "one that has joined takes no place";
  RawClient again = RawClient::tcp(daemon.endpoint());
  EXPECT_EQ(again.read_answer().status, 503);
}

TEST_F(PeerListener, gives_the_place_of_a_link_that_ended_to_the_next) {
  PeerDaemon daemon{options()};
  for (int i = 1; i <= 40; ++i) {
    {
      const RawClient client = link_to(daemon);
    }
    EXPECT_NE(daemon.sink.end_of(static_cast<LinkId>(i)), "no end");
  }
}

TEST_F(PeerListener, ends_a_link_that_does_not_join) {
  PeerOptions impatient;
  impatient.join = Milliseconds{200};
  PeerDaemon daemon{options(), impatient};
  RawClient joins = link_to(daemon);
  daemon.join(daemon.sink.opened(1));
  RawClient does_not = link_to(daemon);
  EXPECT_EQ(close_code_of(does_not), 1008);
  EXPECT_EQ(daemon.sink.end_of(daemon.sink.opened(2)), "the other daemon did not join within 200 ms");
  joins.send_frame(1, "I may stay");
  EXPECT_EQ(daemon.sink.texts(1, 1), std::vector<std::string>{"I may stay"});
}

TEST_F(PeerListener, ends_the_link_with_most_where_those_that_have_not_joined_hold_too_much) {
  PeerOptions narrow;
  narrow.joining_bytes = 300'000;
  PeerDaemon daemon{options(), narrow};
  RawClient joined = link_to(daemon);
  daemon.join(daemon.sink.opened(1));
  joined.send_frame(1, std::string(500'000, 'j'), false);
  RawClient most = link_to(daemon);
  most.send_frame(1, std::string(140'000, 'm'), false);
  RawClient other = link_to(daemon);
  other.send_frame(1, std::string(100'000, 'o'), false);
  RawClient last = link_to(daemon);
  last.send_frame(1, std::string(70'000, 'l'), false);
  const std::string why = daemon.sink.end_of(2);
  EXPECT_NE(why.find("hold more than 300000 bytes of unfinished messages"), std::string::npos) << why;
  other.send_frame(0, "end");
  joined.send_frame(0, "end");
  EXPECT_EQ(daemon.sink.texts(3, 1).front().size(), 100'003u);
  EXPECT_EQ(daemon.sink.texts(1, 1).front().size(), 500'003u);
}

TEST_F(PeerListener, does_not_start_where_its_port_is_taken) {
  const PeerDaemon first{options("a")};
  ServerOptions second = options("b");
  second.peer_address = first.endpoint();
  boost::asio::io_context io{1};
  EchoHandlers handlers;
  RecordingSink sink;
  prometheus::Registry registry;
  NetMetrics metrics{registry};
  PeerLinks links{io, {}, sink, metrics};
  Server server{io, second, handlers, handlers, handlers, metrics, &links};
  const auto failure = server.start();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->kind, StartFailure::Kind::InUse);
  EXPECT_NE(failure->message.find("[peer] listen"), std::string::npos) << failure->message;
}

/// What is wrong with the listener's options, and what the failure says.
struct Unusable {
  const char* name;
  std::function<void(ServerOptions&)> change;
  const char* said;
};

class PeerListenerStart : public PeerTest, public testing::WithParamInterface<Unusable> {};

TEST_P(PeerListenerStart, is_refused) {
  ServerOptions bad = options();
  GetParam().change(bad);
  boost::asio::io_context io{1};
  EchoHandlers handlers;
  RecordingSink sink;
  prometheus::Registry registry;
  NetMetrics metrics{registry};
  PeerLinks links{io, {}, sink, metrics};
  Server server{io, bad, handlers, handlers, handlers, metrics, &links};
  const auto failure = server.start();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->kind, StartFailure::Kind::Configuration);
  EXPECT_NE((failure->message + failure->hint).find(GetParam().said), std::string::npos)
      << failure->message << "; " << failure->hint;
  EXPECT_FALSE(std::filesystem::exists(bad.socket_path));
}

void write_token(const ServerOptions& options, std::string_view token, mode_t mode = 0600) {
  std::ofstream{options.peer_token_file} << token;
  ::chmod(options.peer_token_file.c_str(), mode);
}

INSTANTIATE_TEST_SUITE_P(
    Where,
    PeerListenerStart,
    testing::Values(
        Unusable{"no_token_file", [](ServerOptions& o) { o.peer_token_file += "-gone"; }, "[peer] token_file"},
        Unusable{"token_for_all", [](ServerOptions& o) { write_token(o, kPeerToken, 0644); }, "has mode 0644"},
        Unusable{"short_token", [](ServerOptions& o) { write_token(o, "too short"); }, "shorter than 16 bytes"},
        Unusable{
            "two_lines",
            [](ServerOptions& o) { write_token(o, "0123456789abcdef\r\nX-More: 0123456789\n"); },
            "not one line"},
        Unusable{"a_name", [](ServerOptions& o) { o.peer_address = "node0:9478"; }, "[peer] listen"},
        Unusable{"no_port", [](ServerOptions& o) { o.peer_address = "127.0.0.1:"; }, "[peer] listen"}
    ),
    [](const testing::TestParamInfo<Unusable>& tested) { return std::string(tested.param.name); }
);

/// Frames that end a link: what is said to the other end, and to the sink.
struct BadText {
  const char* name;
  std::function<void(RawClient&)> send;
  int code;
  const char* said;
};

class PeerListenerText : public PeerTest, public testing::WithParamInterface<BadText> {};

TEST_P(PeerListenerText, ends_the_link_and_no_other) {
  PeerOptions narrow;
  narrow.link_message_bytes = 64 * 1024;
  PeerDaemon daemon{options(), narrow};
  RawClient good = link_to(daemon);
  RawClient bad = link_to(daemon);
  bad.send_frame(1, "before");
  GetParam().send(bad);
  bad.send_frame(1, "behind");
  EXPECT_EQ(close_code_of(bad), GetParam().code);
  const std::string why = daemon.sink.end_of(2);
  EXPECT_NE(why.find(GetParam().said), std::string::npos) << why;
  EXPECT_EQ(daemon.sink.texts(2, 1), std::vector<std::string>{"before"});
  good.send_frame(1, std::string(64 * 1024, 'g'));
  EXPECT_EQ(daemon.sink.texts(1, 1).front().size(), 64u * 1024);
}

std::string header_of(std::uint64_t bytes) {
  std::string header = "\x81\xff";
  for (int shift = 56; shift >= 0; shift -= 8) {
    header += static_cast<char>(bytes >> shift & 0xff);
  }
  return header + std::string(4, '\0');
}

INSTANTIATE_TEST_SUITE_P(
    Of,
    PeerListenerText,
    testing::Values(
        BadText{"binary", [](RawClient& c) { c.send_frame(2, "bytes"); }, 1003, "no text"},
        BadText{"not_utf8", [](RawClient& c) { c.send_frame(1, "\xff"); }, 1007, "WebSocket protocol"},
        BadText{
            "cut_character",
            [](RawClient& c) {
              c.send_frame(1, "\xc3", false);
              c.send_frame(0, "");
            },
            1007,
            "within a character"},
        BadText{"unmasked", [](RawClient& c) { c.send_frame(1, "x", true, false); }, 1002, "WebSocket protocol"},
        BadText{"reserved", [](RawClient& c) { c.send_frame(1, "x", true, true, 4); }, 1002, "WebSocket protocol"},
        BadText{"too_large", [](RawClient& c) { c.send_frame(1, std::string(65'537, 'x')); }, 1009, "more than 65536"},
        BadText{"endless", [](RawClient& c) { c.send(header_of(std::uint64_t{1} << 62)); }, 1009, "more than 65536"},
        BadText{
            "too_large_in_parts",
            [](RawClient& c) {
              c.send_frame(1, std::string(65'536, 'x'), false);
              c.send_frame(0, "x");
            },
            1009,
            "more than 65536"}
    ),
    [](const testing::TestParamInfo<BadText>& tested) { return std::string(tested.param.name); }
);

}  // namespace
}  // namespace gradsync::net
