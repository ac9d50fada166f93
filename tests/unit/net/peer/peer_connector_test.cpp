#include "net/peer/peer_connector.hpp"

#include "unit/net/peer/listening_stub.hpp"
#include "unit/net/peer/peer_fixture.hpp"

#include <gmock/gmock.h>

#include <latch>

namespace gradsync::net {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class PeerConnectorTest : public PeerTest {
 protected:
  /// A daemon with these only connects.
  [[nodiscard]] ServerOptions no_listener() const {
    ServerOptions only_connects = options("b");
    only_connects.peer_address.clear();
    return only_connects;
  }

  [[nodiscard]] static Resolved at(std::uint16_t port) { return {{*numeric_address("127.0.0.1", port)}, {}}; }

  [[nodiscard]] static std::uint16_t port_of(const std::string& endpoint) {
    return static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
  }
};

TEST_F(PeerConnectorTest, ends_where_nobody_listens_and_the_next_one_finds_who_came) {
  ServerOptions later = options("a");
  {
    const ListeningStub taken;
    later.peer_address = taken.endpoint();
  }
  PeerDaemon connecting{no_listener()};
  EXPECT_THAT(
      connecting.sink.end_of(connecting.connect(later.peer_address)), HasSubstr("127.0.0.1: Connection refused")
  );
  PeerDaemon accepting{later};
  const LinkId link = connecting.connect(later.peer_address);
  EXPECT_EQ(connecting.sink.opened(), link);
  connecting.send(link, "there you are");
  EXPECT_THAT(accepting.sink.texts(accepting.sink.opened(), 1), SizeIs(1));
}

TEST_F(PeerConnectorTest, stops_while_it_resolves_or_connects) {
  const ListeningStub silent;
  std::latch answers{1};
  PeerOptions with_names;
  with_names.look_up = [&answers, port = silent.port()](const std::string&, std::uint16_t) {
    answers.wait();
    return at(port);
  };
  PeerDaemon connecting{no_listener(), with_names};
  for (const bool drops : {true, false}) {
    for (const std::string& address : {std::string("node0"), silent.endpoint()}) {
      const LinkId link = connecting.connect(address);
      drops ? connecting.drop(link) : connecting.close(link);
      EXPECT_EQ(connecting.sink.end_of(link), drops ? "this daemon dropped it" : "this daemon closed it");
    }
  }
  answers.count_down();
  EXPECT_EQ(connecting.sink.open_count(), 0u);
}

TEST_F(PeerConnectorTest, stops_in_the_middle_of_a_handshake) {
  const ListeningStub silent;
  PeerDaemon connecting{no_listener()};
  const LinkId link = connecting.connect(silent.endpoint());
  RawClient other_end = silent.accept();
  EXPECT_THAT(other_end.read_line(), HasSubstr("GET /peer HTTP/1.1"));
  connecting.drop(link);
  EXPECT_EQ(connecting.sink.end_of(link), "this daemon dropped it");
  while (!other_end.read_line().empty()) {  // the rest of the request
  }
  EXPECT_EQ(connecting.sink.open_count(), 0u);
}

TEST_F(PeerConnectorTest, sends_token_subprotocol_and_host) {
  const ListeningStub silent;
  PeerDaemon connecting{no_listener()};
  static_cast<void>(connecting.connect(silent.endpoint()));
  RawClient other_end = silent.accept();
  std::vector<std::string> lines;
  for (std::string line = other_end.read_line(); line.size() > 1; line = other_end.read_line()) {
    lines.push_back(line);
  }
  EXPECT_THAT(lines, testing::Contains("GET /peer HTTP/1.1\r"));
  EXPECT_THAT(lines, testing::Contains(fmt::format("Authorization: Bearer {}\r", kPeerToken)));
  EXPECT_THAT(lines, testing::Contains("Sec-WebSocket-Protocol: gradsync.peer.v1.jsonrpc\r"));
  EXPECT_THAT(lines, testing::Contains(fmt::format("Host: {}\r", silent.endpoint())));
}

TEST_F(PeerConnectorTest, gives_an_answer_up_that_does_not_come) {
  const ListeningStub silent;
  PeerOptions impatient;
  impatient.connect = Milliseconds{100};
  PeerDaemon connecting{no_listener(), impatient};
  const LinkId link = connecting.connect(silent.endpoint());
  EXPECT_EQ(connecting.sink.end_of(link), "127.0.0.1: no answer within 100 ms");
}

TEST_F(PeerConnectorTest, says_that_the_tokens_differ) {
  PeerDaemon accepting{options("a")};
  PeerDaemon connecting{no_listener()};
  connecting.on_io([&] { connecting.links.use_token("another token of some length"); });
  const LinkId refused = connecting.connect(accepting.endpoint());
  EXPECT_THAT(connecting.sink.end_of(refused), HasSubstr("refuses the token: [peer] token_file"));
  EXPECT_EQ(accepting.sink.open_count(), 0u);
  connecting.on_io([&] { connecting.links.use_token(kPeerToken); });
  const LinkId link = connecting.connect(accepting.endpoint());
  EXPECT_EQ(connecting.sink.opened(), link);
}

TEST_F(PeerConnectorTest, says_what_is_wrong_at_another_port) {
  ServerOptions with_pages = options("a");
  with_pages.health_address = "127.0.0.1:0";
  const PeerDaemon other{with_pages};
  PeerDaemon connecting{no_listener()};
  const LinkId link = connecting.connect(other.server.health_endpoint());
  EXPECT_THAT(connecting.sink.end_of(link), HasSubstr("HTTP 404: what answers there is no listener"));
}

TEST_F(PeerConnectorTest, survives_what_answers_anything) {
  const ListeningStub listening;
  PeerDaemon connecting{no_listener()};
  for (const std::string& answer :
       {std::string("SSH-2.0-OpenSSH_9.2\r\n"),
        std::string("HTTP/1.1 101 Switching Protocols\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"),
        "HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n",
        std::string(1000, '\0'),
        std::string()}) {
    const LinkId link = connecting.connect(listening.endpoint());
    RawClient other_end = listening.accept();
    other_end.send(answer);
    other_end.shut_down_sending();
    while (!other_end.at_end()) {
    }
    EXPECT_THAT(connecting.sink.end_of(link), HasSubstr("127.0.0.1: "));
  }
  EXPECT_EQ(connecting.sink.open_count(), 0u);
}

TEST_F(PeerConnectorTest, an_address_that_is_none_ends_the_link) {
  PeerDaemon connecting{no_listener()};
  for (const char* address : {"", "node0:", "node0:0", "node0:65536", "no de", "[node0]:1", ":9478"}) {
    const LinkId link = connecting.connect(address);
    EXPECT_THAT(connecting.sink.end_of(link), HasSubstr("is not an address like node0 or node0:9478")) << address;
  }
}

TEST_F(PeerConnectorTest, opens_no_link_once_all_are_closed) {
  PeerDaemon accepting{options("a")};
  PeerDaemon connecting{no_listener()};
  connecting.on_io([&] { connecting.links.close_all(); });
  const LinkId link = connecting.connect(accepting.endpoint());
  EXPECT_EQ(connecting.sink.end_of(link), "this daemon is shutting down");
  EXPECT_EQ(accepting.sink.open_count(), 0u);
}

TEST_F(PeerConnectorTest, finds_a_name_of_the_system) {
  PeerDaemon accepting{options("a")};
  PeerDaemon connecting{no_listener()};
  const LinkId link = connecting.connect(fmt::format("localhost:{}", port_of(accepting.endpoint())));
  EXPECT_EQ(connecting.sink.opened(), link);
}

TEST_F(PeerConnectorTest, says_that_a_name_has_no_address) {
  PeerDaemon connecting{no_listener()};
  const std::string name = std::string(64, 'n') + ".example";  // a label has 63 at most, so that no server is asked
  const LinkId link = connecting.connect(name);
  EXPECT_THAT(connecting.sink.end_of(link), HasSubstr("'" + name + "' has no address: "));
}

TEST_F(PeerConnectorTest, resolves_the_name_anew_for_each_link) {
  PeerDaemon accepting{options("a")};
  const std::uint16_t port = port_of(accepting.endpoint());
  int asked = 0;
  PeerOptions with_names;
  with_names.look_up = [&asked, port](const std::string& host, std::uint16_t wanted) {
    EXPECT_EQ(host, "node0");
    EXPECT_EQ(wanted, 9478);
    return ++asked < 3 ? Resolved{{}, fmt::format("not there yet: {}", asked)} : at(port);
  };
  PeerDaemon connecting{no_listener(), with_names};
  EXPECT_EQ(connecting.sink.end_of(connecting.connect("node0")), "not there yet: 1");
  EXPECT_EQ(connecting.sink.end_of(connecting.connect("node0")), "not there yet: 2");
  const LinkId link = connecting.connect("node0");
  EXPECT_EQ(connecting.sink.opened(), link);
}

TEST_F(PeerConnectorTest, tries_each_address_of_a_name) {
  PeerDaemon accepting{options("a")};
  ListeningStub gone;
  gone.close();
  PeerOptions with_names;
  with_names.look_up = [dead = gone.port(), alive = port_of(accepting.endpoint())](const std::string&, std::uint16_t) {
    Resolved both = at(dead);
    both.addresses.push_back(at(alive).addresses.front());
    return both;
  };
  PeerDaemon connecting{no_listener(), with_names};
  const LinkId link = connecting.connect("node0");
  EXPECT_EQ(connecting.sink.opened(), link);
}

TEST_F(PeerConnectorTest, a_resolver_that_hangs_delays_names_and_nothing_else) {
  PeerDaemon accepting{options("a")};
  const std::uint16_t port = port_of(accepting.endpoint());
  std::latch answers{1};
  PeerOptions with_names;
  with_names.resolve = Milliseconds{50};
  with_names.look_up = [&answers, port](const std::string& host, std::uint16_t) {
    if (host == "hangs") {
      answers.wait();
    }
    return at(port);
  };
  PeerDaemon connecting{no_listener(), with_names};
  for (const std::string name : {"hangs", "hangs", "behind"}) {
    EXPECT_EQ(connecting.sink.end_of(connecting.connect(name)), fmt::format("'{}' is not resolved within 50 ms", name));
  }
  const LinkId numeric = connecting.connect(accepting.endpoint());
  EXPECT_EQ(connecting.sink.opened(1), numeric);
  connecting.send(numeric, "not delayed");
  EXPECT_THAT(accepting.sink.texts(accepting.sink.opened(1), 1), SizeIs(1));
  answers.count_down();
}

}  // namespace
}  // namespace gradsync::net
