#include "net/http/http_rules.hpp"

#include <gtest/gtest.h>

namespace gradsync::net {
namespace {

TEST(HttpRules, splits_a_target_at_the_first_question_mark) {
  EXPECT_EQ(split_target("/healthz?verbose&exclude=a?b").path, "/healthz");
  EXPECT_EQ(split_target("/healthz?verbose&exclude=a?b").query, "verbose&exclude=a?b");
  EXPECT_EQ(split_target("/healthz").query, "");
}

TEST(HttpRules, json_content_types_may_carry_parameters) {
  EXPECT_TRUE(is_json_content_type("application/json"));
  EXPECT_TRUE(is_json_content_type("Application/JSON ; charset=utf-8"));
  EXPECT_TRUE(is_json_content_type("application/json-rpc"));
  EXPECT_FALSE(is_json_content_type("application/jsonl"));
  EXPECT_FALSE(is_json_content_type("text/plain"));
  EXPECT_FALSE(is_json_content_type(""));
}

TEST(HttpRules, a_subprotocol_is_one_whole_item_of_the_offer) {
  EXPECT_TRUE(offers_subprotocol("gradsync.v1.jsonrpc", "gradsync.v1.jsonrpc"));
  EXPECT_TRUE(offers_subprotocol("other, gradsync.v1.jsonrpc", "gradsync.v1.jsonrpc"));
  EXPECT_FALSE(offers_subprotocol("gradsync.v1.jsonrpcx,gradsync.v2", "gradsync.v1.jsonrpc"));
  EXPECT_FALSE(offers_subprotocol("", "gradsync.v1.jsonrpc"));
}

TEST(HttpRules, an_origin_is_only_good_when_it_is_the_host_asked) {
  EXPECT_TRUE(origin_matches_host("http://node7:9478", "node7:9478"));
  EXPECT_TRUE(origin_matches_host("https://Node7:9478", "node7:9478"));
  EXPECT_FALSE(origin_matches_host("http://evil.example", "node7:9478"));
  EXPECT_FALSE(origin_matches_host("null", "node7:9478"));
  EXPECT_FALSE(origin_matches_host("http://", ""));
}

TEST(HttpRules, a_loopback_port_answers_to_addresses_and_localhost) {
  for (const char* host : {"", "localhost", "LOCALHOST:9477", "127.0.0.1:9477", "[::1]:9477"}) {
    EXPECT_TRUE(is_loopback_host(host)) << host;
  }
  for (const char* host : {"evil.example", "evil.example:9477", "127.0.0.1.evil.example", ":9477", "["}) {
    EXPECT_FALSE(is_loopback_host(host)) << host;
  }
}

TEST(HttpRules, a_bearer_token_must_be_equal_as_a_whole) {
  EXPECT_TRUE(bearer_matches("Bearer 0123456789abcdef", "0123456789abcdef"));
  EXPECT_TRUE(bearer_matches("bearer 0123456789abcdef ", "0123456789abcdef"));
  EXPECT_FALSE(bearer_matches("Bearer 0123456789abcde", "0123456789abcdef"));
  EXPECT_FALSE(bearer_matches("Bearer 0123456789abcdef0123456789abcdef", "0123456789abcdef"));
  EXPECT_FALSE(bearer_matches("Basic 0123456789abcdef", "0123456789abcdef"));
  EXPECT_FALSE(bearer_matches("Bearer ", ""));
  EXPECT_FALSE(bearer_matches("", ""));
}

}  // namespace
}  // namespace gradsync::net
