#include "app/daemon/pages/health.hpp"

#include <gtest/gtest.h>

namespace gradsync::app {
namespace {

const std::vector<HealthCheck> kGood{{"one", ""}, {"two", ""}};
const std::vector<HealthCheck> kBad{{"one", ""}, {"two", "it broke"}};

TEST(Probe, says_ok_when_everything_is) {
  const net::HttpReply reply = probe_reply("readyz", kGood, {});
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "ok");
}

TEST(Probe, verbose_lists_every_check) {
  const net::HttpReply reply = probe_reply("readyz", kGood, parse_probe_query("verbose"));
  EXPECT_EQ(reply.body, "[+]one ok\n[+]two ok\nreadyz check passed\n");
}

TEST(Probe, a_failure_is_503_and_says_which_and_why) {
  const net::HttpReply reply = probe_reply("readyz", kBad, {});
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.body, "[+]one ok\n[-]two failed: it broke\nreadyz check failed\n");
}

TEST(Probe, an_excluded_check_cannot_fail) {
  const net::HttpReply reply = probe_reply("readyz", kBad, parse_probe_query("verbose&exclude=two"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "[+]one ok\n[+]two excluded: ok\nreadyz check passed\n");
}

TEST(Probe, excluding_what_does_not_exist_is_said) {
  const net::HttpReply reply = probe_reply("readyz", kGood, parse_probe_query("exclude=three&verbose"));
  EXPECT_EQ(reply.body, "[+]one ok\n[+]two ok\nwarn: nothing to exclude is named 'three'\nreadyz check passed\n");
}

TEST(Probe, queries_are_read_part_by_part) {
  EXPECT_TRUE(parse_probe_query("verbose=true").verbose);
  EXPECT_FALSE(parse_probe_query("verbose=false").verbose);
  EXPECT_FALSE(parse_probe_query("").verbose);
  EXPECT_EQ(parse_probe_query("exclude=a&&exclude=b").excluded, (std::vector<std::string>{"a", "b"}));
}

}  // namespace
}  // namespace gradsync::app
