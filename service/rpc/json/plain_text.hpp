#pragma once
// Texts from outside end up in log lines, status pages and terminals: none may hold a character that ends a line or
// steers a terminal.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradsync::rpc {

struct ControlCharacter {
  std::size_t at = 0;      ///< byte
  std::size_t length = 0;  ///< in bytes
  std::uint32_t code = 0;
};

/// The first of U+0000–001F, U+007F–009F, U+2028 and U+2029. `text` is UTF-8.
[[nodiscard]] std::optional<ControlCharacter> find_control_character(std::string_view text);

/// The text in quotes with those characters as \u00XX, cut after some 60 bytes.
[[nodiscard]] std::string quote_escaped(std::string_view text);

}  // namespace gradsync::rpc
