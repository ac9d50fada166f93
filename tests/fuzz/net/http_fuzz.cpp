// Any header texts. The input is two of them, parted by the first NUL; what the functions say must be what their
// one-line definitions say. The lines of the first are also the headers of a request for a data connection, to the
// protocol that the second names: what is taken has one spelling.

#include "fuzz/fuzz.hpp"
#include "net/data/data_request.hpp"
#include "net/http/http_rules.hpp"

#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <variant>

namespace {

using namespace gradsync::net;  // NOLINT(google-build-using-namespace): a main file

std::string trimmed(std::string text) {
  const std::size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

void check_texts(const std::string& a, const std::string& b) {
  const Target target = split_target(a);
  const std::string path(target.path);
  REQUIRE(path.find('?') == std::string::npos);
  REQUIRE(path == a || path + "?" + std::string(target.query) == a);

  static_cast<void>(is_json_content_type(a));
  REQUIRE(is_json_content_type(" Application/JSON ;" + a));

  const bool listable = !b.empty() && b.find(',') == std::string::npos && trimmed(b) == b;
  REQUIRE(!listable || offers_subprotocol(a + ", " + b, b));

  static_cast<void>(origin_matches_host(a, b));
  REQUIRE(origin_matches_host("HTTPS://" + a, a) == !a.empty());

  REQUIRE(constant_time_equal(a, b) == (a == b));
  static_cast<void>(bearer_matches(a, b));
  REQUIRE(bearer_matches("bearer " + a, b) == (!b.empty() && trimmed(a) == b));
}

void check_data_request(const std::string& lines, const std::string& protocol) {
  std::map<std::string, std::string, std::less<>> headers;
  std::istringstream text(lines);
  for (const auto& [name, value] : data_headers({})) {
    std::string line;
    if (std::getline(text, line)) {
      headers.emplace(name, line);
    }
  }
  const auto header = [&headers](std::string_view name) -> std::optional<std::string_view> {
    const auto found = headers.find(name);
    return found == headers.end() ? std::nullopt : std::optional<std::string_view>(found->second);
  };
  const auto read = read_data_request({true, true, protocol, 0, header});
  if (const auto* hello = std::get_if<DataLinkHello>(&read)) {
    REQUIRE(protocol == kDataProtocol);
    REQUIRE(!hello->job.empty() && hello->job.size() <= 256 && hello->epoch > 0);
    for (const auto& [name, value] : data_headers(*hello)) {
      REQUIRE(headers.find(name) != headers.end() && headers.find(name)->second == value);
    }
  } else {
    REQUIRE(std::get<Refusal>(read).status == 400 || std::get<Refusal>(read).status == 426);
    REQUIRE(std::get<Refusal>(read).text.size() < 256);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(gradsync::fuzz::text_of(data, size));
  const std::size_t part = text.find('\0');
  const std::string second = part == std::string::npos ? "" : text.substr(part + 1);
  check_texts(text.substr(0, part), second);
  check_data_request(text.substr(0, part), second);
  return 0;
}
