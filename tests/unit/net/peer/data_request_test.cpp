// What a request for a data connection has to say, without sockets.

#include "net/data/data_request.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace gradsync::net {
namespace {

using testing::HasSubstr;

const DataLinkHello kHello{"llm größe", 1000, 7, DataPayload::Results, "00000000deadbeef", "00000000cafef00d"};

struct Asked {
  bool is_get = true;
  bool upgrades = true;
  std::string protocol = std::string(kDataProtocol);
  std::size_t bytes_behind = 0;
  std::map<std::string, std::string, std::less<>> headers;

  explicit Asked(const DataLinkHello& hello) {
    for (const auto& [name, value] : data_headers(hello)) {
      headers[std::string(name)] = value;
    }
  }

  [[nodiscard]] std::variant<DataLinkHello, Refusal> read() const {
    return read_data_request(
        {is_get,
         upgrades,
         protocol,
         bytes_behind,
         [this](std::string_view name) -> std::optional<std::string_view> {
           const auto found = headers.find(name);
           return found == headers.end() ? std::nullopt : std::optional<std::string_view>(found->second);
         }}
    );
  }

  [[nodiscard]] Refusal refusal() const {
    const auto answer = read();
    const auto* refused = std::get_if<Refusal>(&answer);
    return refused == nullptr ? Refusal{101, "it is taken"} : *refused;
  }
};

TEST(DataRequest, says_what_the_connection_is_for) {
  const auto read = Asked(kHello).read();
  ASSERT_TRUE(std::holds_alternative<DataLinkHello>(read)) << std::get<Refusal>(read).text;
  EXPECT_EQ(std::get<DataLinkHello>(read), kHello);
}

TEST(DataRequest, takes_the_longest_name_and_the_highest_numbers) {
  DataLinkHello hello = kHello;
  hello.job = std::string(256, '\xff');
  hello.uid = 0xFFFF'FFFF;
  hello.epoch = 0xFFFF'FFFF;
  hello.payload = DataPayload::Partials;
  const auto read = Asked(hello).read();
  ASSERT_TRUE(std::holds_alternative<DataLinkHello>(read)) << std::get<Refusal>(read).text;
  EXPECT_EQ(std::get<DataLinkHello>(read), hello);
}

TEST(DataRequest, has_to_be_an_upgrade_to_this_protocol) {
  Asked other_verb(kHello);
  other_verb.is_get = false;
  EXPECT_EQ(other_verb.refusal().status, 426);
  EXPECT_EQ(other_verb.refusal().value, kDataProtocol);
  Asked no_upgrade(kHello);
  no_upgrade.upgrades = false;
  EXPECT_EQ(no_upgrade.refusal().status, 426);
  Asked nothing(kHello);
  nothing.protocol.clear();
  EXPECT_EQ(nothing.refusal().status, 426);
  for (const char* protocol : {"websocket", "gradsync.data.v2", "gradsync.data.v1, h2c", "GRADSYNC.DATA.V1"}) {
    Asked another(kHello);
    another.protocol = protocol;
    EXPECT_EQ(another.refusal().status, 400) << protocol;
    EXPECT_THAT(another.refusal().text, HasSubstr("supported: gradsync.data.v1")) << protocol;
  }
}

TEST(DataRequest, has_nothing_behind_it) {
  Asked early(kHello);
  early.bytes_behind = 40;
  EXPECT_EQ(early.refusal().status, 400);
  EXPECT_THAT(early.refusal().text, HasSubstr("40 bytes came along"));
}

TEST(DataRequest, needs_every_header) {
  for (const auto& [name, value] : data_headers(kHello)) {
    Asked incomplete(kHello);
    incomplete.headers.erase(std::string(name));
    EXPECT_EQ(incomplete.refusal().status, 400) << name;
    EXPECT_THAT(incomplete.refusal().text, HasSubstr("the header " + std::string(name))) << name;
  }
}

TEST(DataRequest, names_a_header_whose_value_is_wrong) {
  const std::pair<const char*, std::string> cases[] = {
      {"Gradsync-Job", ""},
      {"Gradsync-Job", "6"},
      {"Gradsync-Job", "6A"},
      {"Gradsync-Job", "llm"},
      {"Gradsync-Job", "-1"},
      {"Gradsync-Job", std::string(514, '6')},
      {"Gradsync-Uid", ""},
      {"Gradsync-Uid", "-1"},
      {"Gradsync-Uid", "4294967296"},
      {"Gradsync-Uid", "01"},
      {"Gradsync-Uid", "0x1"},
      {"Gradsync-Uid", "1 "},
      {"Gradsync-Epoch", "0"},
      {"Gradsync-Epoch", "4294967296"},
      {"Gradsync-Epoch", "99999999999999999999999"},
      {"Gradsync-Epoch", "7.0"},
      {"Gradsync-Payload", "partial"},
      {"Gradsync-Payload", ""},
      {"Gradsync-From", "deadbeef"},
      {"Gradsync-From", "00000000DEADBEEF"},
      {"Gradsync-To", std::string(17, '0')},
      {"Gradsync-To", "000000000000000g"}};
  for (const auto& [name, value] : cases) {
    Asked wrong(kHello);
    wrong.headers[name] = value;
    EXPECT_EQ(wrong.refusal().status, 400) << name << ' ' << value;
    EXPECT_THAT(wrong.refusal().text, HasSubstr(std::string("the header ") + name + " is '")) << value;
    EXPECT_LT(wrong.refusal().text.size(), 200U);
  }
}

}  // namespace
}  // namespace gradsync::net
