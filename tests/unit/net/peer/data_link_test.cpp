// Data connections between real daemons, and with strangers.

#include "net/peer/resolver.hpp"
#include "unit/net/peer/listening_stub.hpp"
#include "unit/net/peer/peer_fixture.hpp"

#include <gmock/gmock.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <latch>
#include <random>

namespace gradsync::net {
namespace {

using testing::HasSubstr;

class DataLinkTest : public PeerTest {
 protected:
  [[nodiscard]] static DataLinkHello hello(DataPayload payload = DataPayload::Partials) {
    return {"llm", 1000, 7, payload, "00000000deadbeef", "00000000cafef00d"};
  }

  /// Those of a request that is taken.
  [[nodiscard]] static std::string headers() {
    return bearer() +
           "Connection: Upgrade\r\nUpgrade: gradsync.data.v1\r\nGradsync-Job: 6c6c6d\r\nGradsync-Uid: 1000\r\n"
           "Gradsync-Epoch: 7\r\nGradsync-Payload: partials\r\nGradsync-From: 00000000deadbeef\r\n"
           "Gradsync-To: 00000000cafef00d\r\n";
  }

  /// A daemon with these only connects.
  [[nodiscard]] ServerOptions no_listener() const {
    ServerOptions only_connects = options("b");
    only_connects.peer_address.clear();
    return only_connects;
  }

  static void expect_bare(const UniqueFd& socket) {
    ASSERT_TRUE(socket.valid());
    EXPECT_NE(::fcntl(socket.get(), F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(::fcntl(socket.get(), F_GETFD) & FD_CLOEXEC, 0);
  }

  /// Up to 64 bytes of a socket that does not block; "end" where there are none.
  [[nodiscard]] static std::string next_of(const UniqueFd& socket) {
    pollfd wanted{socket.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&wanted, 1, 60'000), 1);
    char bytes[64];
    const ssize_t got = ::recv(socket.get(), bytes, sizeof bytes, 0);
    return got > 0 ? std::string(bytes, static_cast<std::size_t>(got)) : "end";
  }
};

TEST_F(DataLinkTest, both_ends_get_a_bare_socket) {
  PeerDaemon accepting{options("a")};
  PeerDaemon connecting{no_listener()};
  const UniqueFd dialled =
      connecting.sink.dialled(connecting.connect_data(accepting.endpoint(), hello(DataPayload::Results)));
  expect_bare(dialled);
  DataLink accepted = accepting.sink.data_link();
  expect_bare(accepted.socket);
  EXPECT_EQ(accepted.hello, hello(DataPayload::Results));
  EXPECT_EQ(accepted.other_address, "127.0.0.1");
  EXPECT_EQ(::send(dialled.get(), "there", 5, MSG_NOSIGNAL), 5);
  EXPECT_EQ(next_of(accepted.socket), "there");
  EXPECT_EQ(::send(accepted.socket.get(), "back", 4, MSG_NOSIGNAL), 4);
  EXPECT_EQ(next_of(dialled), "back");
  accepted.socket = UniqueFd{};
  EXPECT_EQ(next_of(dialled), "end");
}

TEST_F(DataLinkTest, takes_no_place_once_it_is_handed_over) {
  PeerDaemon accepting{options("a")};
  PeerDaemon connecting{no_listener()};
  std::vector<UniqueFd> sockets;
  std::vector<DataLink> accepted;
  for (int i = 0; i < 40; ++i) {
    sockets.push_back(connecting.sink.dialled(connecting.connect_data(accepting.endpoint(), hello())));
    accepted.push_back(accepting.sink.data_link());
    EXPECT_TRUE(sockets.back().valid() && accepted.back().socket.valid()) << i;
  }
  accepting.on_io([&] { EXPECT_EQ(accepting.metrics.connections.Value(), 0); });
}

TEST_F(DataLinkTest, is_refused_where_links_that_have_not_joined_have_all_places) {
  PeerDaemon accepting{options("a")};
  PeerDaemon connecting{no_listener()};
  std::vector<RawClient> links;
  for (int i = 0; i < 16; ++i) {
    links.push_back(link_to(accepting));
  }
  EXPECT_THAT(
      connecting.sink.data_failure_of(connecting.connect_data(accepting.endpoint(), hello())),
      HasSubstr("HTTP 503: it has no place")
  );
}

TEST_F(DataLinkTest, asks_for_the_token_before_anything_else) {
  PeerDaemon daemon{options()};
  for (const std::string& token : {std::string(), bearer("0123456789abcdef0123456789abcdeX")}) {
    RawClient client = RawClient::tcp(daemon.endpoint());
    const HttpAnswer answer = client.request("GET", "/peer/data", token + headers().substr(bearer().size()));
    EXPECT_EQ(answer.status, 401) << token;
    EXPECT_TRUE(client.at_end());
  }
  EXPECT_EQ(daemon.metrics.refused_token.Value(), 2);
  EXPECT_EQ(daemon.sink.data_link_count(), 0u);
}

TEST_F(DataLinkTest, is_at_one_path_by_one_upgrade) {
  PeerDaemon daemon{options()};

  struct Asked {
    const char* verb;
    const char* target;
    std::string headers;
    int status;
  };

  const std::string with_body = headers() + "Content-Length: 1\r\n";
  for (const Asked& asked :
       {Asked{"GET", "/peer/data", bearer(), 426},
        Asked{"POST", "/peer/data", headers(), 426},
        Asked{"GET", "/peer/data", with_body, 413},
        Asked{"GET", "/peer/data", headers() + "Origin: http://evil.example\r\n", 403},
        Asked{"GET", "/peer/data", headers() + "Gradsync-Epoch: 8\r\n", 400},
        Asked{"GET", "/peer/data", headers() + "Upgrade: websocket\r\n", 426},
        Asked{"GET", "/peer/datas", headers(), 404},
        Asked{"GET", "/peer", headers(), 426},
        Asked{"GET", "/peer/data?x=1", headers(), 101}}) {
    RawClient client = RawClient::tcp(daemon.endpoint());
    const HttpAnswer answer = client.request(asked.verb, asked.target, asked.headers);
    EXPECT_EQ(answer.status, asked.status) << asked.verb << ' ' << asked.target << ' ' << answer.body;
    if (asked.status == 101) {
      EXPECT_EQ(answer.headers.at("upgrade"), "gradsync.data.v1");
      EXPECT_FALSE(answer.headers.contains("content-length"));
    } else {
      EXPECT_TRUE(client.at_end());
    }
  }
  RawClient websocket = RawClient::tcp(daemon.endpoint());
  EXPECT_EQ(websocket.upgrade("gradsync.peer.v1.jsonrpc", "/peer/data", bearer()).status, 400);
  EXPECT_TRUE(daemon.sink.data_link().socket.valid()) << "of the one that was answered 101";
  EXPECT_EQ(daemon.sink.data_link_count(), 0u);
  EXPECT_EQ(daemon.sink.open_count(), 0u);
}

TEST_F(DataLinkTest, is_at_the_entrance_of_links_alone) {
  const PeerDaemon daemon{options()};
  RawClient client = RawClient::unix_socket(folder / "a.sock");
  EXPECT_EQ(client.request("GET", "/peer/data", headers()).status, 404);
}

TEST_F(DataLinkTest, takes_no_bytes_before_its_answer) {
  PeerDaemon daemon{options()};
  RawClient client = RawClient::tcp(daemon.endpoint());
  client.send("GET /peer/data HTTP/1.1\r\nHost: a\r\n" + headers() + "\r\nearly");
  const HttpAnswer answer = client.read_answer();
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("5 bytes came along"));
  EXPECT_EQ(daemon.sink.data_link_count(), 0u);
}

TEST_F(DataLinkTest, closes_half_a_request_in_time) {
  ServerOptions impatient = options();
  impatient.handshake_timeout = Milliseconds{100};
  PeerDaemon daemon{impatient};
  RawClient slow = RawClient::tcp(daemon.endpoint());
  slow.send("GET /peer/data HTTP/1.1\r\nHost: a\r\n" + headers());
  EXPECT_TRUE(slow.at_end());
  EXPECT_EQ(daemon.sink.data_link_count(), 0u);
}

TEST_F(DataLinkTest, survives_strangers_that_send_anything) {
  PeerDaemon daemon{options()};
  std::mt19937 random{11};
  for (int i = 0; i < 50; ++i) {
    RawClient stranger = RawClient::tcp(daemon.endpoint());
    std::string bytes(random() % 4096, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    stranger.send("GET /peer/data HTTP/1.1\r\n" + (i % 2 == 0 ? headers() : "") + bytes + "\r\n\r\n");
  }
  PeerDaemon connecting{no_listener()};
  EXPECT_TRUE(connecting.sink.dialled(connecting.connect_data(daemon.endpoint(), hello())).valid());
  EXPECT_TRUE(daemon.sink.data_link().socket.valid());
}

TEST_F(DataLinkTest, says_that_the_tokens_differ) {
  PeerDaemon accepting{options("a")};
  PeerDaemon connecting{no_listener()};
  connecting.on_io([&] { connecting.links.use_token("another token of some length"); });
  const LinkId refused = connecting.connect_data(accepting.endpoint(), hello());
  EXPECT_THAT(connecting.sink.data_failure_of(refused), HasSubstr("refuses the token: [peer] token_file"));
}

TEST_F(DataLinkTest, gives_an_answer_up_that_does_not_come) {
  const ListeningStub silent;
  PeerOptions impatient;
  impatient.connect = Milliseconds{100};
  PeerDaemon connecting{no_listener(), impatient};
  const LinkId id = connecting.connect_data(silent.endpoint(), hello());
  EXPECT_EQ(connecting.sink.data_failure_of(id), "127.0.0.1: no answer within 100 ms");
}

TEST_F(DataLinkTest, survives_what_answers_anything) {
  const ListeningStub listening;
  PeerDaemon connecting{no_listener()};
  const std::string taken = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: gradsync.data.v1\r\n";
  const std::pair<std::string, const char*> cases[] = {
      {"", "the other daemon closed the connection"},
      {"HTTP/1.1 101", "the connection broke"},
      {"SSH-2.0-OpenSSH_9.2\r\n\r\n", "the connection broke: bad version"},
      {"HTTP/1.1 200 OK\r\n\r\n", "HTTP 200"},
      {"HTTP/1.1 404 Not Found\r\n\r\n", "HTTP 404: what answers there is no listener"},
      {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n", "no listener for data connections"},
      {taken + "\r\nearly", "no listener for data connections"},
      {taken + "X: " + std::string(64 << 10, 'x') + "\r\n\r\n", "the connection broke: header limit exceeded"}};
  for (const auto& [answer, said] : cases) {
    const LinkId id = connecting.connect_data(listening.endpoint(), hello());
    {
      RawClient other_end = listening.accept();
      EXPECT_THAT(other_end.read_line(), HasSubstr("GET /peer/data HTTP/1.1"));
      while (other_end.read_line().size() > 1) {
      }
      other_end.send(answer);
      if (answer.size() < 20) {
        other_end.shut_down_sending();
      }
      EXPECT_THAT(connecting.sink.data_failure_of(id), HasSubstr(said)) << answer.substr(0, 60);
    }
  }
}

TEST_F(DataLinkTest, tries_each_address_of_a_name_once) {
  PeerDaemon accepting{options("a")};
  const std::string endpoint = accepting.endpoint();
  const auto open = static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
  ListeningStub closed;
  const std::uint16_t shut = closed.port();
  closed.close();
  PeerOptions with_names;
  with_names.look_up = [&](const std::string& host, std::uint16_t) {
    Resolved resolved{{*numeric_address("127.0.0.1", shut)}, {}};
    if (host == "both") {
      resolved.addresses.push_back(*numeric_address("127.0.0.1", open));
    }
    return resolved;
  };
  PeerDaemon connecting{no_listener(), with_names};
  EXPECT_THAT(
      connecting.sink.data_failure_of(connecting.connect_data("one", hello())), HasSubstr("Connection refused")
  );
  EXPECT_TRUE(connecting.sink.dialled(connecting.connect_data("both", hello())).valid());
}

TEST_F(DataLinkTest, can_be_dropped_at_any_time) {
  const ListeningStub silent;
  std::latch answers{1};
  PeerOptions with_names;
  with_names.look_up = [&answers, port = silent.port()](const std::string&, std::uint16_t) {
    answers.wait();
    return Resolved{{*numeric_address("127.0.0.1", port)}, {}};
  };
  PeerDaemon connecting{no_listener(), with_names};
  for (const std::string& address : {std::string("node0"), silent.endpoint()}) {
    const LinkId id = connecting.connect_data(address, hello());
    connecting.drop(id);
    EXPECT_EQ(connecting.sink.data_failure_of(id), "this daemon dropped it");
  }
  const LinkId asked = connecting.connect_data(silent.endpoint(), hello());
  RawClient other_end = silent.accept();
  while (other_end.read_line().size() > 1) {
  }
  connecting.drop(asked);
  EXPECT_EQ(connecting.sink.data_failure_of(asked), "this daemon dropped it");
  EXPECT_FALSE(connecting.sink.dialled(connecting.connect_data("no address", hello())).valid());
  answers.count_down();
}

TEST_F(DataLinkTest, ends_with_the_daemon) {
  const ListeningStub silent;
  PeerDaemon connecting{no_listener()};
  const LinkId id = connecting.connect_data(silent.endpoint(), hello());
  connecting.on_io([&] { connecting.links.close_all(); });
  EXPECT_EQ(connecting.sink.data_failure_of(id), "this daemon is shutting down");
  EXPECT_EQ(
      connecting.sink.data_failure_of(connecting.connect_data(silent.endpoint(), hello())),
      "this daemon is shutting down"
  );
}

TEST_F(DataLinkTest, may_be_left_where_a_daemon_stops_at_once) {
  const ListeningStub silent;
  PeerDaemon connecting{no_listener()};
  static_cast<void>(connecting.connect_data(silent.endpoint(), hello()));
  const RawClient other_end = silent.accept();
  connecting.stop_at_once();
}

}  // namespace
}  // namespace gradsync::net
