#include "rpc/json/plain_text.hpp"

#include <fmt/format.h>

namespace gradsync::rpc {

namespace {

constexpr std::size_t kShownBytes = 60;

unsigned char byte_of(std::string_view text, std::size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : '\0';
}

std::optional<ControlCharacter> control_at(std::string_view text, std::size_t at) {
  const unsigned first = byte_of(text, at);
  const unsigned second = byte_of(text, at + 1);
  const unsigned third = byte_of(text, at + 2);
  if (first < 0x20 || first == 0x7F) {
    return ControlCharacter{at, 1, first};
  }
  if (first == 0xC2 && second >= 0x80 && second < 0xA0) {
    return ControlCharacter{at, 2, second};
  }
  // Ends of lines and paragraphs, and what turns the direction of the text that a terminal shows.
  if (first == 0xE2 && second == 0x80 && (third == 0x8E || third == 0x8F || (third >= 0xA8 && third <= 0xAE))) {
    return ControlCharacter{at, 3, 0x2000 + third - 0x80};
  }
  if (first == 0xE2 && second == 0x81 && third >= 0xA6 && third <= 0xA9) {
    return ControlCharacter{at, 3, 0x2040 + third - 0x80};
  }
  if (first == 0xD8 && second == 0x9C) {
    return ControlCharacter{at, 2, 0x061C};
  }
  return std::nullopt;
}

}  // namespace

std::optional<ControlCharacter> find_control_character(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const unsigned byte = byte_of(text, at);
    const bool plain = byte >= 0x20 && byte < 0x7F;
    if (const auto found = plain ? std::nullopt : control_at(text, at)) {
      return found;
    }
  }
  return std::nullopt;
}

std::string quote_escaped(std::string_view text) {
  std::string quoted = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const bool begins_character = (byte_of(text, at) & 0xC0U) != 0x80U;
    if (begins_character && quoted.size() > kShownBytes) {
      return quoted + "…\"";
    }
    const auto control = control_at(text, at);
    if (control) {
      quoted += fmt::format("\\u{:04x}", control->code);
      at += control->length;
    } else {
      quoted += text[at++];
    }
  }
  return quoted + "\"";
}

}  // namespace gradsync::rpc
