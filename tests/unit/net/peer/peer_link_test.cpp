#include "unit/net/peer/listening_stub.hpp"
#include "unit/net/peer/peer_fixture.hpp"

#include <sys/socket.h>
#include <sys/time.h>

#include <random>

namespace gradsync::net {
namespace {

/// Two daemons and a link that the second has opened to the first.
class PeerLinkTest : public PeerTest {
 protected:
  void start(const PeerOptions& peer_options = {}) {
    accepting_ = std::make_unique<PeerDaemon>(options("a"), peer_options);
    connecting_ = std::make_unique<PeerDaemon>(options("b"), peer_options);
  }

  void link() {
    mine = connecting_->connect(accepting_->endpoint());
    theirs = accepting_->sink.opened();
    ASSERT_EQ(connecting_->sink.opened(), mine);
    accepting_->join(theirs);
  }

  PeerDaemon& accepting() { return *accepting_; }

  PeerDaemon& connecting() { return *connecting_; }

  LinkId mine = 0;    ///< the link as the one that connected knows it
  LinkId theirs = 0;  ///< as the one that accepted it does

 private:
  std::unique_ptr<PeerDaemon> accepting_;
  std::unique_ptr<PeerDaemon> connecting_;
};

/// Small ones, none, and one in a hundred of some 100,000 bytes.
std::vector<std::string> many_texts(char letter) {
  std::mt19937 random{static_cast<unsigned>(letter)};
  std::vector<std::string> texts;
  for (int i = 0; i < 5'000; ++i) {
    const std::size_t size = i % 100 == 99 ? 100'000 : random() % 300;
    texts.push_back(fmt::format("{}{}", i, std::string(size, letter)));
  }
  texts[2'500].clear();
  return texts;
}

TEST_F(PeerLinkTest, carries_thousands_of_texts_both_ways_in_order) {
  start();
  link();
  const std::vector<std::string> there = many_texts('t');
  const std::vector<std::string> back = many_texts('b');
  for (std::size_t i = 0; i < there.size(); ++i) {
    connecting().send(mine, there[i]);
    accepting().send(theirs, back[i]);
  }
  EXPECT_EQ(accepting().sink.texts(theirs, there.size()), there);
  EXPECT_EQ(connecting().sink.texts(mine, back.size()), back);
}

TEST_F(PeerLinkTest, carries_a_message_of_the_largest_size_both_ways) {
  start();
  link();
  const std::string large(PeerOptions{}.link_message_bytes, 'l');
  connecting().send(mine, large);
  accepting().send(theirs, large);
  EXPECT_TRUE(accepting().sink.texts(theirs, 1).front() == large);
  EXPECT_TRUE(connecting().sink.texts(mine, 1).front() == large);
}

TEST_F(PeerLinkTest, names_both_ends_to_both) {
  start();
  link();
  EXPECT_TRUE(accepting().sink.ends_of(theirs).accepted);
  EXPECT_FALSE(connecting().sink.ends_of(mine).accepted);
  for (const LinkEnds& ends : {accepting().sink.ends_of(theirs), connecting().sink.ends_of(mine)}) {
    EXPECT_EQ(ends.own_address, "127.0.0.1");
    EXPECT_EQ(ends.other_address, "127.0.0.1");
  }
}

TEST_F(PeerLinkTest, what_is_sent_as_it_opens_comes_first) {
  start();
  accepting().when_open([this](LinkId opened) {
    accepting().links.send(opened, "hello");
    accepting().links.send(opened, "and more");
  });
  link();
  accepting().send(theirs, "later");
  EXPECT_EQ(connecting().sink.texts(mine, 3), (std::vector<std::string>{"hello", "and more", "later"}));
}

TEST_F(PeerLinkTest, later_links_have_higher_numbers) {
  start();
  link();
  const LinkId next = connecting().connect(accepting().endpoint());
  EXPECT_GT(next, mine);
  EXPECT_GT(accepting().sink.opened(2), theirs);
}

TEST_F(PeerLinkTest, beats_both_ways_where_nothing_else_is_sent) {
  PeerOptions quick;
  quick.beat = Milliseconds{20};
  start(quick);
  link();
  EXPECT_TRUE(accepting().sink.beats(theirs, 3));
  EXPECT_TRUE(connecting().sink.beats(mine, 3));
}

TEST_F(PeerLinkTest, beats_go_on_after_a_time_of_other_texts) {
  PeerOptions quick;
  quick.beat = Milliseconds{20};
  start(quick);
  link();
  for (int i = 0; i < 100; ++i) {
    connecting().send(mine, "text");
  }
  EXPECT_EQ(accepting().sink.texts(theirs, 100).size(), 100u);
  EXPECT_TRUE(accepting().sink.beats(theirs, 3));
}

TEST_F(PeerLinkTest, is_dead_where_the_other_end_is_silent) {
  PeerOptions quick;
  quick.dead = Milliseconds{200};
  PeerDaemon daemon{options(), quick};
  const RawClient silent = link_to(daemon);
  EXPECT_EQ(daemon.sink.end_of(daemon.sink.opened()), "no byte came from the other daemon for 200 ms");
}

TEST_F(PeerLinkTest, lives_while_any_byte_comes) {
  PeerOptions quick;
  quick.dead = Milliseconds{1'000};
  PeerDaemon daemon{options(), quick};
  RawClient slow = link_to(daemon);
  slow.send_frame(1, "a message", false);
  for (int part = 0; part < 30; ++part) {  // for longer than a second, without the end of a message
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (part % 2 == 0) {
      slow.send_frame(0, " in parts", false);
    } else {
      slow.send_frame(9, "");
    }
  }
  slow.send_frame(0, " and its end");
  EXPECT_EQ(daemon.sink.texts(1, 1).size(), 1u);
}

TEST_F(PeerLinkTest, a_daemon_that_was_held_up_does_not_take_others_for_dead) {
  PeerOptions quick;
  quick.dead = Milliseconds{200};
  PeerDaemon daemon{options(), quick};
  RawClient client = link_to(daemon);
  const LinkId held = daemon.sink.opened();
  daemon.on_io([&] {
    client.send_frame(1, "while it is held up");
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
  });
  EXPECT_EQ(daemon.sink.texts(held, 1), std::vector<std::string>{"while it is held up"});
}

TEST_F(PeerLinkTest, ends_where_pings_come_whose_answers_nobody_reads) {
  PeerOptions quick;
  quick.dead = Milliseconds{300};
  quick.beat = Milliseconds{100};
  PeerDaemon daemon{options(), quick};
  RawClient client = link_to(daemon);
  const LinkId flooded = daemon.sink.opened();
  const timeval patience{0, 200'000};
  ::setsockopt(client.fd(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  while (!daemon.sink.has_ended(flooded)) {
    client.send_frame(9, std::string(125, 'p'));
  }
  EXPECT_NE(daemon.sink.end_of(flooded), "no end");
}

/// Which way a link is cut.
struct Cut {
  const char* name;
  bool to_target;
  bool from_target;
};

class HalfOpenLink : public PeerTest, public testing::WithParamInterface<Cut> {};

TEST_P(HalfOpenLink, ends_at_both_daemons) {
  PeerOptions quick;
  quick.beat = Milliseconds{50};
  quick.dead = Milliseconds{500};
  PeerDaemon accepting{options("a"), quick};
  FreezingProxy proxy{accepting.endpoint()};
  PeerDaemon connecting{options("b"), quick};
  const LinkId mine = connecting.connect(proxy.endpoint());
  const LinkId theirs = accepting.sink.opened();
  ASSERT_EQ(connecting.sink.opened(), mine);
  ASSERT_TRUE(connecting.sink.beats(mine, 1));
  if (GetParam().to_target) {
    proxy.freeze_to_target();
  }
  if (GetParam().from_target) {
    proxy.freeze_from_target();
  }
  EXPECT_NE(accepting.sink.end_of(theirs), "no end");
  EXPECT_NE(connecting.sink.end_of(mine), "no end");
}

INSTANTIATE_TEST_SUITE_P(
    Cuts,
    HalfOpenLink,
    testing::Values(Cut{"both_ways", true, true}, Cut{"one_way", true, false}, Cut{"other_way", false, true}),
    [](const testing::TestParamInfo<Cut>& tested) { return std::string(tested.param.name); }
);

TEST_F(PeerLinkTest, ends_where_the_other_end_does_not_read) {
  PeerOptions narrow;
  narrow.link_unread_bytes = 1 << 20;
  PeerDaemon daemon{options(), narrow};
  const RawClient deaf = link_to(daemon);
  const LinkId link = daemon.sink.opened();
  RawClient other = link_to(daemon);
  const LinkId reads = daemon.sink.opened(2);
  while (!daemon.sink.has_ended(link)) {
    daemon.send(link, std::string(64 * 1024, 'x'));
  }
  const std::string why = daemon.sink.end_of(link);
  EXPECT_NE(why.find("does not read"), std::string::npos) << why;
  EXPECT_NE(why.find("the limit is 1048576"), std::string::npos) << why;
  EXPECT_EQ(daemon.metrics.slow_readers.Value(), 1);
  daemon.send(reads, "still here");
  EXPECT_EQ(other.read_frame().payload, "still here");
}

TEST_F(PeerLinkTest, ends_before_it_sends_what_the_other_end_would_refuse) {
  PeerOptions narrow;
  narrow.link_message_bytes = 1000;
  start(narrow);
  link();
  connecting().send(mine, "before");
  connecting().send(mine, std::string(1001, 'x'));
  const std::string why = connecting().sink.end_of(mine);
  EXPECT_EQ(why, "a message of 1001 bytes is too large for a link, the limit is 1000");
  EXPECT_NE(accepting().sink.end_of(theirs), "no end");
  EXPECT_EQ(accepting().sink.texts(theirs, 1), std::vector<std::string>{"before"});
}

TEST_F(PeerLinkTest, that_is_closed_brings_what_was_sent_before) {
  start();
  link();
  const std::string large(64 * 1024, 'l');  // much more may not be written within the second, with sanitizers
  accepting().on_io([&] {
    for (int i = 0; i < 4; ++i) {
      accepting().links.send(theirs, large);
    }
    accepting().links.send(theirs, "the last word");
    accepting().links.close(theirs);
    accepting().links.send(theirs, "behind it");
  });
  EXPECT_EQ(accepting().sink.end_of(theirs), "this daemon closed it");
  EXPECT_EQ(connecting().sink.end_of(mine), "the other daemon closed it");
  const std::vector<std::string> texts = connecting().sink.texts(mine, 5);
  ASSERT_EQ(texts.size(), 5u);
  EXPECT_EQ(texts.back(), "the last word");
}

TEST_F(PeerLinkTest, that_is_closed_as_it_opens_brings_its_last_words) {
  start();
  accepting().when_open([this](LinkId opened) {
    accepting().links.send(opened, "refused");
    accepting().links.close(opened);
  });
  link();
  EXPECT_EQ(connecting().sink.end_of(mine), "the other daemon closed it");
  EXPECT_EQ(connecting().sink.texts(mine, 1), std::vector<std::string>{"refused"});
}

TEST_F(PeerLinkTest, that_is_dropped_is_not_read_any_more) {
  start();
  accepting().when_text([this](LinkId from, std::string_view) { accepting().links.drop(from); });
  link();
  connecting().on_io([&] {
    for (int i = 0; i < 100; ++i) {
      connecting().links.send(mine, std::to_string(i));
    }
  });
  EXPECT_EQ(accepting().sink.end_of(theirs), "this daemon dropped it");
  EXPECT_NE(connecting().sink.end_of(mine), "no end");
  EXPECT_EQ(accepting().sink.texts(theirs, 1), std::vector<std::string>{"0"});
}

TEST_F(PeerLinkTest, that_is_closed_is_not_read_any_more) {
  start();
  accepting().when_text([this](LinkId from, std::string_view) { accepting().links.close(from); });
  link();
  connecting().on_io([&] {
    for (int i = 0; i < 100; ++i) {
      connecting().links.send(mine, std::to_string(i));
    }
  });
  EXPECT_EQ(accepting().sink.end_of(theirs), "this daemon closed it");
  EXPECT_EQ(connecting().sink.end_of(mine), "the other daemon closed it");
  EXPECT_EQ(accepting().sink.texts(theirs, 1), std::vector<std::string>{"0"});
}

TEST_F(PeerLinkTest, that_is_closed_ends_also_where_the_other_end_does_not_read) {
  PeerDaemon daemon{options()};
  const RawClient deaf = link_to(daemon);
  const LinkId link = daemon.sink.opened();
  for (int i = 0; i < 32; ++i) {
    daemon.send(link, std::string(1 << 20, 'x'));
  }
  daemon.close(link);
  EXPECT_EQ(daemon.sink.end_of(link), "this daemon closed it");
  while (daemon.metrics.connections.Value() > 0) {  // the session goes within a second
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST_F(PeerLinkTest, is_told_that_the_other_daemon_shuts_down) {
  start();
  link();
  accepting().on_io([this] { accepting().links.close_all(); });
  EXPECT_EQ(connecting().sink.end_of(mine), "the other daemon is shutting down");
  EXPECT_EQ(accepting().sink.end_of(theirs), "this daemon is shutting down");
}

TEST_F(PeerLinkTest, is_closed_alike_by_the_daemon_that_connected) {
  start();
  link();
  connecting().on_io([this] {
    connecting().links.send(mine, "the last word");
    connecting().links.close(mine);
  });
  EXPECT_EQ(accepting().sink.end_of(theirs), "the other daemon closed it");
  EXPECT_EQ(accepting().sink.texts(theirs, 1), std::vector<std::string>{"the last word"});
}

TEST_F(PeerLinkTest, is_told_alike_that_the_daemon_that_connected_shuts_down) {
  start();
  link();
  connecting().on_io([this] { connecting().links.close_all(); });
  EXPECT_EQ(accepting().sink.end_of(theirs), "the other daemon is shutting down");
}

TEST_F(PeerLinkTest, ends_with_the_connection) {
  PeerDaemon daemon{options()};
  {
    RawClient client = link_to(daemon);
    client.send_frame(1, "the last text");
    client.send_frame(1, "of which there is no", false);
  }
  EXPECT_EQ(daemon.sink.end_of(1), "the other daemon closed the connection");
  EXPECT_EQ(daemon.sink.texts(1, 1), std::vector<std::string>{"the last text"});
}

TEST_F(PeerLinkTest, whose_owner_throws_ends_and_no_other_does) {
  start();
  accepting().when_text([](LinkId, std::string_view text) {
    if (text == "throw") {
      throw std::runtime_error("thrown by the owner");
    }
  });
  link();
  const LinkId other = connecting().connect(accepting().endpoint());
  const LinkId their_other = accepting().sink.opened(2);
  ASSERT_EQ(connecting().sink.opened(2), other);
  connecting().send(mine, "throw");
  EXPECT_NE(accepting().sink.end_of(theirs).find("defect"), std::string::npos);
  EXPECT_NE(connecting().sink.end_of(mine), "no end");
  connecting().send(other, "still here");
  EXPECT_EQ(accepting().sink.texts(their_other, 1), std::vector<std::string>{"still here"});
}

TEST_F(PeerLinkTest, is_gone_with_a_daemon_that_stops_at_once) {
  PeerDaemon daemon{options("a")};
  RawClient client = link_to(daemon);
  PeerDaemon stops{options("b")};
  const LinkId link = stops.connect(daemon.endpoint());
  ASSERT_EQ(stops.sink.opened(), link);
  RawClient accepted = link_to(stops);
  ASSERT_NE(stops.sink.opened(2), 0u);
  accepted.send_frame(1, "half", false);
  stops.stop_at_once();
  EXPECT_FALSE(daemon.sink.has_ended(daemon.sink.opened(1)));
}

}  // namespace
}  // namespace gradsync::net
