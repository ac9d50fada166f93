#include "base/text/host_port.hpp"

#include <gtest/gtest.h>

namespace gradsync {
namespace {

struct Written {
  std::string text;
  std::string host;
  std::optional<std::uint16_t> port;
};

class HostPortOf : public testing::TestWithParam<Written> {};

TEST_P(HostPortOf, is_read_as_it_is_written) {
  const auto parsed = parse_host_port(GetParam().text);
  ASSERT_TRUE(parsed.has_value()) << GetParam().text;
  EXPECT_EQ(parsed->host, GetParam().host);
  EXPECT_EQ(parsed->port, GetParam().port);
}

INSTANTIATE_TEST_SUITE_P(
    Addresses,
    HostPortOf,
    testing::Values(
        Written{"node0", "node0", std::nullopt},
        Written{"node0:9478", "node0", 9478},
        Written{"a_b.example-1.org:1", "a_b.example-1.org", 1},
        Written{"10.0.0.1", "10.0.0.1", std::nullopt},
        Written{"10.0.0.1:0", "10.0.0.1", 0},
        Written{"10.0.0.1:65535", "10.0.0.1", 65535},
        Written{"node0:00080", "node0", 80},
        Written{"::1", "::1", std::nullopt},
        Written{"[::1]", "::1", std::nullopt},
        Written{"[::1]:9478", "::1", 9478},
        Written{"[::ffff:10.0.0.1]:9478", "::ffff:10.0.0.1", 9478},
        Written{"[fe80::1%eth0]:9478", "fe80::1%eth0", 9478},
        Written{std::string(253, 'n'), std::string(253, 'n'), std::nullopt}
    )
);

TEST(HostPort, refuses_what_is_no_address) {
  const std::vector<std::string> bad{
      "",
      ":",
      ":9478",
      "node0:",
      "node0:65536",
      "node0:99999",
      "node0:100000",
      "node0:-1",
      "node0:+1",
      "node0: 1",
      "node0:1 ",
      "node0:94x8",
      "node0:0x10",
      "node0:9478:9478",
      " node0",
      "no de",
      "node0/path",
      "user@node0",
      "http://node0",
      "n\xc3\xb6",
      std::string("node\0", 5),
      std::string("node0:94\0", 9),
      std::string(254, 'n'),
      "[",
      "[]",
      "[]:9478",
      "[::1",
      "::1]",
      "[::1]9478",
      "[::1]:",
      "[::1]:65536",
      "[::1]::1",
      "[node0]:9478",
      "[10.0.0.1]:9478",
      "[::1%]:9478",
      "[::1%e/0]",
      "[::1%a-scope-that-is-too-long]",
      std::string("[::1\0]:1", 8),
      "::1:",
      "1:2:3",
      ":::",
      "::1%eth0:9478",
  };
  for (const std::string& text : bad) {
    EXPECT_FALSE(parse_host_port(text).has_value()) << '\'' << text << '\'';
  }
}

TEST(HostPort, is_written_with_brackets_where_the_address_has_colons) {
  EXPECT_EQ(join_host_port("node0", 9478), "node0:9478");
  EXPECT_EQ(join_host_port("::1", 9478), "[::1]:9478");
}

TEST(HostPort, that_is_written_is_read_again) {
  for (const char* host : {"node0", "10.0.0.1", "::1", "fe80::1%eth0"}) {
    const auto parsed = parse_host_port(join_host_port(host, 1234));
    ASSERT_TRUE(parsed.has_value()) << host;
    EXPECT_EQ(parsed->host, host);
    EXPECT_EQ(parsed->port, 1234);
  }
}

}  // namespace
}  // namespace gradsync
