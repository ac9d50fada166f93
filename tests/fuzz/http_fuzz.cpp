// Any header texts. The input is two of them, parted by the first NUL; what the functions say must be what their
// one-line definitions say.

#include "fuzz/fuzz.hpp"
#include "net/http/http_rules.hpp"

#include <string>

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(gradsync::fuzz::text_of(data, size));
  const std::size_t part = text.find('\0');
  check_texts(text.substr(0, part), part == std::string::npos ? "" : text.substr(part + 1));
  return 0;
}
