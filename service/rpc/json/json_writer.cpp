#include "rpc/json/json_writer.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <cmath>

namespace gradsync::rpc {

namespace {

constexpr std::uint64_t kExactIntegers = 1ULL << 53;
constexpr double kLongIntegers = 0x1p63;  // readers refuse integers that do not fit 64 bits

bool needs_escape(char character) {
  const auto byte = static_cast<unsigned char>(character);
  return byte < 0x20 || byte >= 0x7F || character == '"' || character == '\\';
}

}  // namespace

std::string quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void JsonWriter::separate() {
  if (!first_) {
    text_ += ',';
  }
  first_ = false;
}

void JsonWriter::open(char bracket) {
  separate();
  text_ += bracket;
  first_ = true;
}

void JsonWriter::close(char bracket) {
  text_ += bracket;
  first_ = false;
}

void JsonWriter::key(std::string_view name) {
  value(name);
  text_ += ':';
  first_ = true;  // its value follows without a comma
}

void JsonWriter::value(bool value) { raw(value ? "true" : "false"); }

void JsonWriter::value(std::int64_t value) {
  const std::uint64_t magnitude = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  integer(value, magnitude <= kExactIntegers);
}

void JsonWriter::value(std::uint64_t value) { integer(value, value <= kExactIntegers); }

template <typename Integer>
void JsonWriter::integer(Integer value, bool exact) {
  const fmt::format_int digits(value);
  separate();
  text_.append(exact ? "" : "\"").append(digits.data(), digits.size()).append(exact ? "" : "\"");
}

void JsonWriter::value(double value) {
  if (std::isnan(value)) {
    raw("\"NaN\"");
  } else if (std::isinf(value)) {
    raw(value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
  } else if (value == 0 && std::signbit(value)) {
    raw("-0.0");  // readers take "-0" for an integer, which has no sign
  } else {
    char digits[32];
    const auto [end, problem] =
        std::fabs(value) < kLongIntegers
            ? std::to_chars(digits, digits + sizeof(digits), value)
            : std::to_chars(digits, digits + sizeof(digits), value, std::chars_format::scientific);
    raw(std::string_view(digits, static_cast<std::size_t>(end - digits)));
  }
}

void JsonWriter::value(std::string_view value) {
  separate();
  bool plain = true;
  for (const char character : value) {
    plain = plain && !needs_escape(character);
  }
  if (plain) {
    text_ += '"';
    text_ += value;
    text_ += '"';
  } else {
    text_ += quoted(value);
  }
}

void JsonWriter::null() { raw("null"); }

void JsonWriter::raw(std::string_view json) {
  separate();
  text_ += json;
}

}  // namespace gradsync::rpc
