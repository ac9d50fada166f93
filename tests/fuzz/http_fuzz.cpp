// Any header texts, and any bytes of the fd socket. The input is two texts, parted by the first NUL; what the functions
// say must be what their one-line definitions say.

#include "net/http_rules.hpp"
#include "net/token_line.hpp"

#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

using namespace gradsync::net;  // NOLINT(google-build-using-namespace): a main file

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

std::string trimmed(std::string text) {
  const std::size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

void check_texts(const std::string& a, const std::string& b) {
  const Target target = split_target(a);
  const std::string path(target.path);
  require(path.find('?') == std::string::npos);
  require(path == a || path + "?" + std::string(target.query) == a);

  static_cast<void>(is_json_content_type(a));
  require(is_json_content_type(" Application/JSON ;" + a));

  const bool listable = !b.empty() && b.find(',') == std::string::npos && trimmed(b) == b;
  require(!listable || offers_subprotocol(a + ", " + b, b));

  static_cast<void>(origin_matches_host(a, b));
  require(origin_matches_host("HTTPS://" + a, a) == !a.empty());

  require(constant_time_equal(a, b) == (a == b));
  static_cast<void>(bearer_matches(a, b));
  require(bearer_matches("bearer " + a, b) == (!b.empty() && trimmed(a) == b));
}

void check_line(const std::string& bytes) {
  const auto token = read_token_line(bytes);
  if (bytes.size() > kTokenLineBytes) {
    require(token && token->has_error());
  } else if (bytes.find('\n') == std::string::npos) {
    require(!token);
  } else {
    require(token && token->has_value() && bytes.starts_with(**token + "\n"));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::size_t part = text.find('\0');
  check_texts(text.substr(0, part), part == std::string::npos ? "" : text.substr(part + 1));
  check_line(text);
  return 0;
}
