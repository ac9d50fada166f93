#include "unit/net/server_fixture.hpp"

namespace gradsync::net {
namespace {

using Http = ServerTest;

constexpr const char* kJson = "Content-Type: application/json\r\n";

TEST_F(Http, posts_bodies_and_keeps_the_connection) {
  const RunningServer running{options()};
  RawClient client = connect();
  for (int i = 0; i < 3; ++i) {
    const HttpAnswer answer = client.request("POST", "/rpc", kJson, "body");
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers.at("content-type"), "application/json");
    EXPECT_EQ(answer.body, "true none body");
  }
}

TEST_F(Http, others_have_a_turn_between_the_items_of_a_posted_batch) {
  RunningServer running{options()};
  RawClient one = connect();
  RawClient other = connect();
  ASSERT_EQ(other.upgrade("gradsync.v1.jsonrpc").status, 101);
  running.on_io([&] {
    one.send("POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nbatch");
    other.send_frame(1, "costly");
  });
  EXPECT_EQ(one.read_answer().body, "false none the rest");
  EXPECT_TRUE(running.handlers.saw("costly 2"));
  const std::vector<std::string> notes = running.handlers.all();
  const auto its_text = std::find(notes.begin(), notes.end(), "costly 2");
  EXPECT_GT(std::count(its_text, notes.end(), "item of a POST"), 0) << "it came before the batch was done";
}

TEST_F(Http, a_post_without_an_answer_is_204) {
  const RunningServer running{options()};
  RawClient client = connect();
  const HttpAnswer answer = client.request("POST", "/rpc", kJson, "quiet");
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.body, "");
  EXPECT_EQ(client.request("GET", "/page").status, 200);
}

TEST_F(Http, a_chunked_body_is_joined) {
  const RunningServer running{options()};
  RawClient client = connect();
  client.send(
      "POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
  );
  EXPECT_EQ(client.read_answer().body, "true none abcdefg");
}

TEST_F(Http, a_chunked_body_may_come_in_any_pieces) {
  RunningServer running{options()};
  RawClient client = connect();
  client.send("POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (const char byte : std::string_view("3\r\nabc\r\n0\r\n\r\n")) {
    client.send({&byte, 1});
    running.on_io([] {});
  }
  EXPECT_EQ(client.read_answer().body, "true none abc");
}

TEST_F(Http, a_client_that_asks_first_is_told_to_continue) {
  const RunningServer running{options()};
  RawClient client = connect();
  client.send(
      "POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 4\r\nExpect: "
      "100-continue\r\n\r\n"
  );
  EXPECT_EQ(client.read_answer().status, 100);
  client.send("late");
  EXPECT_EQ(client.read_answer().body, "true none late");
}

TEST_F(Http, a_body_over_the_limit_is_refused_before_it_is_read) {
  const RunningServer running{options()};
  RawClient client = connect();
  const HttpAnswer answer = client.request("POST", "/rpc", kJson, std::string((1 << 20) + 1, ' '));
  EXPECT_EQ(answer.status, 413);
  EXPECT_NE(answer.body.find("1048576"), std::string::npos) << answer.body;
}

TEST_F(Http, other_verbs_are_answered_with_those_allowed) {
  const RunningServer running{options()};
  RawClient client = connect();
  const HttpAnswer get_rpc = client.request("GET", "/rpc");
  EXPECT_EQ(get_rpc.status, 405);
  EXPECT_EQ(get_rpc.headers.at("allow"), "POST");
  const HttpAnswer post_page = client.request("POST", "/page", kJson, "body");
  EXPECT_EQ(post_page.status, 405);
  EXPECT_EQ(post_page.headers.at("allow"), "GET, HEAD");
}

TEST_F(Http, unknown_pages_and_content_types_are_refused_by_name) {
  const RunningServer running{options()};
  RawClient client = connect();
  EXPECT_EQ(client.request("GET", "/nowhere").status, 404);
  const HttpAnswer answer = client.request("POST", "/rpc", "Content-Type: text/plain\r\n", "body");
  EXPECT_EQ(answer.status, 415);
  EXPECT_NE(answer.body.find("application/json"), std::string::npos);
}

TEST_F(Http, head_has_the_length_but_no_body) {
  const RunningServer running{options()};
  RawClient client = connect();
  const HttpAnswer head = client.request("HEAD", "/page");
  EXPECT_EQ(head.status, 200);
  const HttpAnswer get = client.request("GET", "/page");
  EXPECT_EQ(head.headers.at("content-length"), std::to_string(get.body.size()));
}

TEST_F(Http, what_is_not_http_is_a_bad_request) {
  const RunningServer running{options()};
  RawClient client = connect();
  client.send("\x16\x03\x01 hello\r\n\r\n");
  EXPECT_EQ(client.read_answer().status, 400);
  EXPECT_TRUE(client.at_end());
}

TEST_F(Http, endless_headers_are_refused) {
  const RunningServer running{options()};
  RawClient client = connect();
  client.send("GET /page HTTP/1.1\r\nX-Long: " + std::string(20'000, 'x'));
  EXPECT_EQ(client.read_answer().status, 431);
}

TEST_F(Http, a_request_that_never_ends_is_cut_at_the_deadline) {
  ServerOptions hasty = options();
  hasty.handshake_timeout = Milliseconds{50};
  const RunningServer running{hasty};
  RawClient client = connect();
  client.send("GET /page HT");
  EXPECT_TRUE(client.at_end());
}

TEST_F(Http, the_health_listener_shows_pages_and_nothing_else) {
  const RunningServer running{options()};
  RawClient client = RawClient::tcp(running.server.health_endpoint());
  const HttpAnswer page = client.request("GET", "/page?verbose");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.body, "query=verbose trusted=false");
  EXPECT_FALSE(page.headers.contains("access-control-allow-origin"));
  EXPECT_EQ(client.request("GET", "/page?bad").status, 503);
  EXPECT_EQ(client.request("POST", "/rpc", kJson, "body").status, 405);
  EXPECT_EQ(client.request("DELETE", "/page").headers.at("allow"), "GET, HEAD");
  EXPECT_EQ(client.upgrade("gradsync.v1.jsonrpc").status, 404);
}

TEST_F(Http, pages_over_the_unix_socket_are_trusted) {
  const RunningServer running{options()};
  RawClient client = connect();
  EXPECT_EQ(client.request("GET", "/page").body, "query= trusted=true");
}

TEST_F(Http, a_taken_health_port_does_not_stop_the_daemon) {
  const RunningServer first{options()};
  ServerOptions second = options();
  second.socket_path = folder / "second.sock";
  second.health_address = first.server.health_endpoint();
  const RunningServer running{second};
  EXPECT_EQ(running.server.health_endpoint(), "");
  RawClient client = RawClient::unix_socket(folder / "second.sock");
  EXPECT_EQ(client.request("GET", "/page").status, 200);
}

TEST_F(Http, connections_over_the_limit_are_told_so_and_probes_still_get_in) {
  ServerOptions few = options();
  few.connections = 1;
  RunningServer running{few};
  RawClient first = websocket();
  RawClient second = connect();
  const HttpAnswer answer = second.read_answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(answer.body.find("limit_exceeded"), std::string::npos);
  EXPECT_EQ(running.metrics.refused_limit.Value(), 1);
  RawClient probe = RawClient::tcp(running.server.health_endpoint());
  EXPECT_EQ(probe.request("GET", "/page").status, 200);
}

TEST_F(Http, a_browser_behind_a_forwarded_port_names_this_machine) {
  const RunningServer running{options()};
  RawClient client = connect();
  for (const char* host : {"localhost:9400", "127.0.0.1:9400", "[::1]:9400", "whatever"}) {
    client.send(fmt::format("GET /page HTTP/1.1\r\nHost: {}\r\n\r\n", host));
    EXPECT_EQ(client.read_answer().status, 200) << host;
  }
  client.send("GET /page HTTP/1.1\r\nHost: evil.example:9400\r\n\r\n");
  EXPECT_EQ(client.read_answer().status, 421);
}

TEST_F(Http, a_page_of_another_site_does_not_speak_for_the_user_of_a_forwarded_port) {
  const RunningServer running{options()};
  RawClient client = connect();
  EXPECT_EQ(client.request("POST", "/rpc", std::string(kJson) + "Origin: http://evil.example\r\n", "body").status, 403);
  EXPECT_EQ(client.request("GET", "/page", "Origin: null\r\n").status, 403);
  EXPECT_EQ(client.upgrade("gradsync.v1.jsonrpc", "/rpc", "Origin: http://evil.example\r\n").status, 403);
  EXPECT_EQ(client.upgrade("gradsync.v1.jsonrpc", "/rpc", "Origin: http://localhost\r\n").status, 101);
}

}  // namespace
}  // namespace gradsync::net
