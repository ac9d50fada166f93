#include "unit/net/server_fixture.hpp"

#include <boost/asio/steady_timer.hpp>

#include <unistd.h>

namespace gradsync::net {
namespace {

using WebSocket = ServerTest;

TEST_F(WebSocket, echoes_in_one_frame_whatever_the_size) {
  const RunningServer running{options()};
  RawClient client = websocket();
  for (const std::size_t size : {0u, 1u, 125u, 126u, 65535u, 65536u, 1u << 20}) {
    const std::string text(size, 'g');
    client.send_frame(1, text);
    const Frame frame = client.read_frame();
    EXPECT_TRUE(frame.fin);
    EXPECT_EQ(frame.opcode, 1);
    EXPECT_EQ(frame.payload, text);
  }
}

TEST_F(WebSocket, names_the_subprotocol_it_speaks) {
  const RunningServer running{options()};
  RawClient client = connect();
  const HttpAnswer answer = client.upgrade("something, gradsync.v1.jsonrpc", "/rpc");
  EXPECT_EQ(answer.status, 101);
  EXPECT_EQ(answer.headers.at("sec-websocket-protocol"), "gradsync.v1.jsonrpc");
  EXPECT_FALSE(answer.headers.contains("sec-websocket-extensions"));
}

TEST_F(WebSocket, a_client_without_the_subprotocol_is_told_what_is_supported) {
  const RunningServer running{options()};
  for (const char* offered : {"", "gradsync.v2.jsonrpc"}) {
    RawClient client = connect();
    const HttpAnswer answer = client.upgrade(offered);
    EXPECT_EQ(answer.status, 400);
    EXPECT_NE(answer.body.find("supported: gradsync.v1.jsonrpc"), std::string::npos) << answer.body;
  }
}

TEST_F(WebSocket, another_path_is_not_found) {
  const RunningServer running{options()};
  RawClient client = connect();
  EXPECT_EQ(client.upgrade("gradsync.v1.jsonrpc", "/elsewhere").status, 404);
}

/// Frames of one text each; none is longer than 125 bytes.
std::string text_frames(std::initializer_list<std::string> texts) {
  std::string frames;
  for (const std::string& text : texts) {
    frames += '\x81';
    frames += static_cast<char>(0x80 | static_cast<int>(text.size()));
    frames += std::string(4, '\0') + text;
  }
  return frames;
}

TEST_F(WebSocket, several_messages_in_one_packet_are_answered_in_order) {
  const RunningServer running{options()};
  RawClient client = websocket();
  std::string packet;
  for (int i = 0; i < 100; ++i) {
    packet += text_frames({std::to_string(i)});
  }
  client.send(packet);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(client.read_frame().payload, std::to_string(i));
  }
}

TEST_F(WebSocket, fragments_are_joined_and_a_ping_between_them_is_answered) {
  const RunningServer running{options()};
  RawClient client = websocket();
  client.send_frame(1, "one ", false);
  client.send_frame(9, "are you there");
  client.send_frame(0, "two ", false);
  client.send_frame(0, "three", true);
  const Frame pong = client.read_frame();
  EXPECT_EQ(pong.opcode, 10);
  EXPECT_EQ(pong.payload, "are you there");
  EXPECT_EQ(client.read_frame().payload, "one two three");
}

TEST_F(WebSocket, a_text_split_inside_a_character_is_still_a_text) {
  const RunningServer running{options()};
  RawClient client = websocket();
  client.send_frame(1, "gr\xc3", false);
  client.send_frame(
      0,
      "\xa4"
      "d",
      true
  );
  EXPECT_EQ(
      client.read_frame().payload,
      "gr\xc3\xa4"
      "d"
  );
}

struct BadFrame {
  const char* name;
  std::function<void(RawClient&)> send;
  int code;
};

class WebSocketClose : public ServerTest, public testing::WithParamInterface<BadFrame> {};

TEST_P(WebSocketClose, closes_with_the_code_of_the_fault) {
  RunningServer running{options()};
  RawClient client = websocket();
  GetParam().send(client);
  const Frame frame = client.read_frame();
  ASSERT_EQ(frame.opcode, 8);
  EXPECT_EQ(frame.close_code(), GetParam().code);
  client.send_frame(8, frame.payload);
  EXPECT_TRUE(client.at_end());
  EXPECT_TRUE(running.handlers.saw("close 1"));
}

INSTANTIATE_TEST_SUITE_P(
    Faults,
    WebSocketClose,
    testing::Values(
        BadFrame{"binary", [](RawClient& c) { c.send_frame(2, "bytes"); }, 1003},
        BadFrame{"bad_utf8", [](RawClient& c) { c.send_frame(1, "\xff\xfe"); }, 1007},
        BadFrame{"surrogate", [](RawClient& c) { c.send_frame(1, "\xed\xa0\x80"); }, 1007},
        BadFrame{"cut_character", [](RawClient& c) { c.send_frame(1, "\xc3"); }, 1007},
        BadFrame{
            "cut_character_before_an_empty_frame",
            [](RawClient& c) {
              c.send_frame(1, "gr\xc3", false);
              c.send_frame(0, "");
            },
            1007},
        BadFrame{"too_big", [](RawClient& c) { c.send_frame(1, std::string((1 << 20) + 1, 'x')); }, 1009},
        BadFrame{
            "too_big_in_fragments",
            [](RawClient& c) {
              c.send_frame(1, std::string(1 << 20, 'x'), false);
              c.send_frame(0, "x", true);
            },
            1009},
        BadFrame{"unmasked", [](RawClient& c) { c.send_frame(1, "text", true, false); }, 1002},
        BadFrame{"reserved_bit", [](RawClient& c) { c.send_frame(1, "text", true, true, 4); }, 1002},
        BadFrame{"reserved_opcode", [](RawClient& c) { c.send_frame(3, "text"); }, 1002},
        BadFrame{"lonely_continuation", [](RawClient& c) { c.send_frame(0, "text"); }, 1002},
        BadFrame{
            "nested_message",
            [](RawClient& c) {
              c.send_frame(1, "a", false);
              c.send_frame(1, "b");
            },
            1002},
        BadFrame{"long_ping", [](RawClient& c) { c.send_frame(9, std::string(126, 'p')); }, 1002},
        BadFrame{"fragmented_ping", [](RawClient& c) { c.send_frame(9, "p", false); }, 1002}
    ),
    [](const testing::TestParamInfo<BadFrame>& tested) { return std::string(tested.param.name); }
);

TEST_F(WebSocket, a_close_of_the_client_is_answered_and_reported_once) {
  RunningServer running{options()};
  RawClient client = websocket();
  client.send_frame(8, "\x03\xe8");
  const Frame frame = client.read_frame();
  EXPECT_EQ(frame.opcode, 8);
  EXPECT_EQ(frame.close_code(), 1000);
  EXPECT_TRUE(running.handlers.saw("close 1"));
  EXPECT_EQ(running.handlers.count("close 1"), 1);
}

TEST_F(WebSocket, a_connection_that_vanishes_is_reported_once) {
  RunningServer running{options()};
  {
    const RawClient client = websocket();
    EXPECT_TRUE(running.handlers.saw(fmt::format("open 1 local=true uid={} token=none", ::geteuid())));
  }
  EXPECT_TRUE(running.handlers.saw("close 1"));
  running.on_io([] {});
  EXPECT_EQ(running.handlers.count("close 1"), 1);
}

TEST_F(WebSocket, closing_writes_first_what_was_queued_and_then_the_reason) {
  const RunningServer running{options()};
  RawClient client = websocket();
  client.send_frame(1, "bye");
  EXPECT_EQ(client.read_frame().payload, "first");
  EXPECT_EQ(client.read_frame().payload, "last");
  const Frame frame = client.read_frame();
  EXPECT_EQ(frame.close_code(), 1008);
  EXPECT_EQ(frame.payload.substr(2), "told to go");
}

TEST_F(WebSocket, says_when_everything_is_written) {
  RunningServer running{options()};
  RawClient client = websocket();
  client.send_frame(1, "text");
  EXPECT_EQ(client.read_frame().payload, "text");
  EXPECT_TRUE(running.handlers.saw("drained 1 true"));
}

TEST_F(WebSocket, a_reader_that_is_too_slow_is_disconnected) {
  ServerOptions small = options();
  small.write_queue_bytes = 4u << 20;
  RunningServer running{small};
  RawClient client = websocket();
  client.send_frame(1, "flood");
  EXPECT_TRUE(running.handlers.saw("close 1"));
  EXPECT_EQ(running.metrics.slow_readers.Value(), 1);
  RawClient other = websocket();
  other.send_frame(1, "still here");
  EXPECT_EQ(other.read_frame().payload, "still here");
}

TEST_F(WebSocket, nothing_counts_behind_the_message_whose_answer_ended_the_connection) {
  ServerOptions small = options();
  small.write_queue_bytes = 4u << 20;
  RunningServer running{small};
  RawClient client = websocket();
  client.send(text_frames({"flood", "costly"}));
  EXPECT_TRUE(running.handlers.saw("close 1"));
  EXPECT_EQ(running.handlers.count("costly 1"), 0);
}

TEST_F(WebSocket, the_last_message_of_a_client_that_left_without_its_answers_still_counts) {
  RunningServer running{options()};
  {
    RawClient client = websocket();
    running.on_io([&] {
      client.send(text_frames({"answered", "costly"}));
      const RawClient gone = std::move(client);
    });
  }
  EXPECT_TRUE(running.handlers.saw("close 1"));
  EXPECT_EQ(running.handlers.count("costly 1"), 1);
}

TEST_F(WebSocket, others_have_a_turn_between_the_items_of_a_batch) {
  RunningServer running{options()};
  RawClient one = websocket();
  RawClient other = websocket();
  running.on_io([&] {
    one.send(text_frames({"batch", "behind it"}));
    other.send_frame(1, "costly");
  });
  EXPECT_EQ(one.read_frame().payload, "batch done");
  EXPECT_EQ(one.read_frame().payload, "behind it") << "the connection keeps its order";
  EXPECT_TRUE(running.handlers.saw("costly 2"));
  const std::vector<std::string> notes = running.handlers.all();
  const auto its_text = std::find(notes.begin(), notes.end(), "costly 2");
  EXPECT_GT(std::count(its_text, notes.end(), "item 1"), 0) << "it came before the batch was done";
  EXPECT_EQ(std::count(notes.begin(), notes.end(), "item 1"), EchoHandlers::kItems);
}

TEST_F(WebSocket, nothing_that_comes_while_the_last_texts_are_written_is_answered) {
  RunningServer running{options()};
  RawClient client = websocket();
  const std::string large(1 << 20, 'x');
  for (int i = 0; i < 4; ++i) {
    client.send_frame(1, large);
  }
  client.send_frame(1, "bye");
  client.send_frame(9, "are you there");
  client.send_frame(0, "continues nothing");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the server reads what it would read
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(client.read_frame().payload.size(), large.size());
  }
  EXPECT_EQ(client.read_frame().payload, "first");
  EXPECT_EQ(client.read_frame().payload, "last");
  EXPECT_EQ(client.read_frame().close_code(), 1008);
}

TEST_F(WebSocket, a_client_that_is_still_writing_is_read_off_and_gets_the_last_texts) {
  RunningServer running{options()};
  RawClient client = websocket();
  const std::string large(1 << 20, 'x');
  for (int i = 0; i < 4; ++i) {
    client.send_frame(1, large);
  }
  client.send_frame(1, "bye");
  for (int i = 0; i < 8; ++i) {
    client.send_frame(1, large);
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(client.read_frame().payload.size(), large.size());
  }
  EXPECT_EQ(client.read_frame().payload, "first");
  EXPECT_EQ(client.read_frame().payload, "last");
  EXPECT_EQ(client.read_frame().close_code(), 1008);
}

TEST_F(WebSocket, an_exception_ends_its_connection_and_no_other) {
  RunningServer running{options()};
  RawClient other = websocket();
  RawClient client = websocket();
  client.send_frame(1, "throw");
  EXPECT_TRUE(client.at_end());
  EXPECT_TRUE(running.handlers.saw("close 2"));
  other.send_frame(1, "still here");
  EXPECT_EQ(other.read_frame().payload, "still here");
}

TEST_F(WebSocket, an_idle_connection_is_pinged_and_lives_while_it_answers) {
  constexpr int kPings = 4;
  int pings = 0;
  // A machine that is too slow to answer in time is given more of it.
  for (Milliseconds timeout{100}; pings < kPings && timeout <= Milliseconds{6'400}; timeout *= 4) {
    ServerOptions idle = options();
    idle.idle_timeout = timeout;
    RunningServer running{idle};
    RawClient client = websocket();
    pings = 0;
    for (Frame ping = client.read_frame(); ping.opcode == 9; ping = client.read_frame()) {
      if (++pings == kPings) {
        EXPECT_TRUE(running.handlers.saw("close 1"));  // nothing was answered any more
        break;
      }
      client.send_frame(10, ping.payload);
    }
  }
  EXPECT_EQ(pings, kPings);
}

TEST_F(WebSocket, one_that_is_never_initialized_is_closed_with_the_reason) {
  ServerOptions hasty = options();
  hasty.initialize_timeout = Milliseconds(20);
  RunningServer running{hasty};
  running.on_io([&] { running.handlers.everybody_initialized = false; });
  RawClient silent = websocket();
  const Frame close = silent.read_frame();
  EXPECT_EQ(close.opcode, 8);
  EXPECT_EQ(close.close_code(), 1008);
  EXPECT_NE(close.payload.find("not_initialized: no session.initialize within 20 ms"), std::string::npos);
}

TEST_F(WebSocket, one_that_was_initialized_in_time_stays) {
  ServerOptions hasty = options();
  hasty.initialize_timeout = Milliseconds(20);
  RunningServer running{hasty};
  RawClient client = websocket();
  ASSERT_TRUE(running.handlers.saw("initialized? 1"));
  client.send_frame(1, "still here");
  EXPECT_EQ(client.read_frame().payload, "still here");
}

// Each of these messages is longer than the turn of a process, so those of the other connections wait for theirs.
TEST_F(WebSocket, messages_of_one_process_wait_for_each_other_and_all_are_executed) {
  const RunningServer running{options()};
  std::vector<RawClient> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(websocket());
  }
  for (RawClient& client : clients) {
    client.send_frame(1, "costly");
    client.send_frame(1, "batch");
    client.send_frame(1, "behind the batch");
  }
  for (RawClient& client : clients) {
    EXPECT_EQ(client.read_frame().payload, "batch done");
    EXPECT_EQ(client.read_frame().payload, "behind the batch");
  }
}

TEST_F(WebSocket, connections_that_end_while_their_messages_wait_hold_nobody_up) {
  RunningServer running{options()};
  RawClient stays = websocket();
  {
    std::vector<RawClient> clients;
    for (int i = 0; i < 12; ++i) {
      clients.push_back(websocket());
    }
    for (RawClient& client : clients) {
      client.send_frame(1, "costly");
      client.send_frame(1, "costly");
    }
  }
  stays.send_frame(1, "still here");
  EXPECT_EQ(stays.read_frame().payload, "still here");
  for (int connection = 2; connection <= 13; ++connection) {
    EXPECT_TRUE(running.handlers.saw(fmt::format("close {}", connection))) << connection;
  }
}

TEST_F(WebSocket, the_end_of_the_server_waits_for_no_turn) {
  std::vector<RawClient> clients;
  {
    const RunningServer running{options()};
    for (int i = 0; i < 12; ++i) {
      clients.push_back(websocket());
      clients.back().send_frame(1, "costly");
    }
  }
  for (RawClient& client : clients) {
    EXPECT_EQ(client.read_frame().opcode, 8);
  }
}

/// Half a message; it has been read when this returns, because a ping behind it was answered.
void begin_message(RawClient& client, std::size_t bytes) {
  client.send_frame(1, std::string(bytes, 'a'), false);
  client.send_frame(9, "");
  ASSERT_EQ(client.read_frame().opcode, 10);
}

TEST_F(WebSocket, half_sent_messages_are_limited_over_all_connections_of_a_process) {
  ServerOptions narrow = options();
  narrow.partial_bytes = 200'000;
  RunningServer running{narrow};
  RawClient first = websocket();
  RawClient second = websocket();
  RawClient third = websocket();
  begin_message(first, 20'000);
  begin_message(second, 60'000);
  begin_message(third, 20'000);
  third.send_frame(0, "b", false);
  const Frame close = second.read_frame();
  EXPECT_EQ(close.opcode, 8) << "it holds most, though another added last";
  EXPECT_EQ(close.close_code(), 1013);
  EXPECT_EQ(
      close.payload.substr(2),
      fmt::format(
          "limit_exceeded: 100001 bytes of messages of process {} are half sent, the limit is 100000", ::getpid()
      )
  );
  first.send_frame(0, "the rest");
  EXPECT_EQ(first.read_frame().payload.size(), 20'008u);
  third.send_frame(0, "the rest");
  EXPECT_EQ(third.read_frame().payload.size(), 20'009u);
  first.send_frame(1, std::string(90'000, 'c'), false);  // what was held is free again
  first.send_frame(0, "d");
  EXPECT_EQ(first.read_frame().payload.size(), 90'001u);
}

TEST_F(WebSocket, one_that_is_closed_for_what_it_half_sent_does_not_keep_it) {
  ServerOptions narrow = options();
  narrow.partial_bytes = 1'000;
  RunningServer running{narrow};
  RawClient client = websocket();
  client.send_frame(1, std::string(2'000, 'a'), false);
  EXPECT_EQ(client.read_frame().close_code(), 1013);
  EXPECT_TRUE(running.handlers.saw("close 1")) << "though the client never answers";
}

TEST_F(WebSocket, the_log_says_whose_connection_is_closed_for_what_it_half_sent) {
  ServerOptions narrow = options();
  narrow.partial_bytes = 2'000;
  testing::internal::CaptureStdout();
  {
    RunningServer running{narrow};
    RawClient client = websocket();
    begin_message(client, 1'000);
    client.send_frame(0, "a", false);
    EXPECT_EQ(client.read_frame().close_code(), 1013);
  }
  const std::string log = testing::internal::GetCapturedStdout();
  const std::string line = fmt::format(
      "1001 bytes of messages of process {0} are half sent, the limit is 1000: closing the largest connection "
      "of the largest process of these connection=1 pid={0} uid={1}\n",
      ::getpid(),
      ::getuid()
  );
  EXPECT_NE(log.find(line), std::string::npos) << log;
}

TEST_F(WebSocket, a_message_that_does_not_end_closes_its_connection_initialized_or_not) {
  ServerOptions hasty = options();
  hasty.message_timeout = Milliseconds(50);
  RunningServer running{hasty};
  RawClient client = websocket();
  client.send_frame(1, "a whole one");
  EXPECT_EQ(client.read_frame().payload, "a whole one");
  client.send_frame(1, "half of ", false);
  const Frame close = client.read_frame();
  EXPECT_EQ(close.opcode, 8);
  EXPECT_EQ(close.close_code(), 1008);
  EXPECT_NE(close.payload.find("not ended within 50 ms"), std::string::npos) << close.payload;
  EXPECT_TRUE(running.handlers.saw("close 1"));
}

TEST_F(WebSocket, a_message_that_ended_leaves_no_deadline_behind) {
  ServerOptions hasty = options();
  hasty.message_timeout = Milliseconds(500);
  hasty.idle_timeout = Milliseconds(2'000);
  for (int tries = 0; tries < 20; ++tries) {
    RunningServer running{hasty};
    RawClient client = websocket();
    const auto before = std::chrono::steady_clock::now();
    client.send_frame(1, "half", false);
    client.send_frame(0, " and half");
    if (std::chrono::steady_clock::now() >= before + hasty.message_timeout) {
      continue;  // the machine was too slow to end the message before the deadline
    }
    EXPECT_EQ(client.read_frame().payload, "half and half");
    EXPECT_EQ(client.read_frame().opcode, 9) << "a ping at half of the idle timeout, later than the deadline";
    return;
  }
  GTEST_SKIP() << "the machine was too slow to end a message before its deadline";
}

TEST_F(WebSocket, a_message_that_ends_as_its_deadline_passes_keeps_its_connection) {
  ServerOptions hasty = options();
  hasty.message_timeout = Milliseconds(500);
  RunningServer running{hasty};
  RawClient client = websocket();
  const auto before = std::chrono::steady_clock::now();
  begin_message(client, 4);
  bool in_time = false;
  // The io thread is busy until the deadline has passed: then it finds the end and the deadline at once, the end first.
  running.on_io([&] {
    in_time = std::chrono::steady_clock::now() < before + hasty.message_timeout;
    client.send_frame(0, " and half");
    boost::asio::steady_timer{running.io, hasty.message_timeout}.wait();
  });
  if (!in_time) {
    GTEST_SKIP() << "the machine was too slow to get there before the deadline";
  }
  EXPECT_EQ(client.read_frame().payload, "aaaa and half");
  client.send_frame(1, "still here");
  EXPECT_EQ(client.read_frame().payload, "still here");
}

TEST_F(WebSocket, shutting_down_says_going_away) {
  RunningServer running{options()};
  RawClient client = websocket();
  running.on_io([&] { running.server.close_all(); });
  const Frame frame = client.read_frame();
  EXPECT_EQ(frame.opcode, 8);
  EXPECT_EQ(frame.close_code(), 1001);
}

TEST_F(WebSocket, shutting_down_does_not_wait_for_a_client_that_never_answers) {
  TempFolder elsewhere;
  RawClient client = [&] {
    RunningServer running{options()};
    RawClient silent = websocket();
    return silent;
  }();
  EXPECT_EQ(client.read_frame().opcode, 8);
  EXPECT_TRUE(client.at_end());
}

TEST_F(WebSocket, several_that_leave_too_much_unread_together_end_and_the_log_says_whose_they_were) {
  ServerOptions few = options();
  few.unread_bytes = 4u << 20;  // of one process: 2 MiB, and each asks for 1 MiB
  testing::internal::CaptureStdout();
  {
    RunningServer running{few};
    std::vector<RawClient> clients;
    for (int i = 0; i < 6; ++i) {
      clients.push_back(websocket());
      clients.back().send_frame(1, std::string(1 << 20, 'x'));
    }
    EXPECT_TRUE(running.handlers.saw("close 1"));
    RawClient reader = websocket();
    reader.send_frame(1, "still there");
    EXPECT_EQ(reader.read_frame().payload, "still there");
    EXPECT_GE(running.metrics.slow_readers.Value(), 1);
  }
  const std::string log = testing::internal::GetCapturedStdout();
  const std::string line = fmt::format(
      "closing a connection that does not read: limit_exceeded: 3145728 bytes of answers to process {0} are unread, "
      "the limit is 2097152 connection=1 pid={0} uid={1}\n",
      ::getpid(),
      ::getuid()
  );
  EXPECT_NE(log.find(line), std::string::npos) << log;
}

}  // namespace
}  // namespace gradsync::net
