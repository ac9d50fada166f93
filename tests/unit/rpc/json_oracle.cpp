#include "unit/rpc/json_oracle.hpp"

#include "rpc/json/json_tape.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <cmath>
#include <optional>
#include <set>
#include <vector>

namespace gradsync::rpc {

namespace {

using OracleJson = nlohmann::json;

constexpr std::size_t kDoubleDigits = 300;

// Both readers write what they read like this, doubles by their bits.
std::string written(bool value) { return value ? "true " : "false "; }

std::string written(std::int64_t value) { return fmt::format("{} ", value); }

std::string written(std::uint64_t value) { return fmt::format("{} ", value); }

std::string written(double value) { return fmt::format("double {:016x} ", std::bit_cast<std::uint64_t>(value)); }

std::string written(std::string_view kind, std::string_view text) {
  return fmt::format("{} of {}: {} ", kind, text.size(), text);
}

/// Ten digits or more behind the zeros.
bool has_long_exponent(std::string_view number) {
  const std::size_t exponent = number.find_first_of("eE");
  const std::size_t digits =
      exponent == std::string_view::npos ? exponent : number.find_first_of("123456789", exponent);
  return digits != std::string_view::npos && number.size() - digits >= 10;
}

bool is_integer(std::string_view number) { return number.find_first_not_of("-0123456789") == std::string_view::npos; }

struct Oracle {
  std::size_t depth;
  std::string text = {};
  std::vector<std::set<std::string>> open = {};
  bool long_exponent = false;
  bool overflows = false;  ///< an integer beyond the range of doubles, which this reader refuses and ours keeps as text

  bool write(std::string_view what) {
    text += what;
    return true;
  }

  bool begin(std::string_view bracket) {
    open.emplace_back();
    return open.size() <= depth && write(bracket);
  }

  bool end(std::string_view bracket) {
    open.pop_back();
    return write(bracket);
  }

  bool null() { return write("null "); }

  bool boolean(bool value) { return write(written(value)); }

  bool number_integer(std::int64_t value) { return write(written(value)); }

  bool number_unsigned(std::uint64_t value) { return write(written(value)); }

  bool number_float(double value, const std::string& number) {
    long_exponent = long_exponent || has_long_exponent(number);
    return is_integer(number) ? write(written("integer", number)) : std::isfinite(value) && write(written(value));
  }

  bool string(std::string& value) { return write(written("string", value)); }

  bool binary(OracleJson::binary_t&) { return false; }

  bool start_object(std::size_t) { return begin("{ "); }

  bool end_object() { return end("} "); }

  bool start_array(std::size_t) { return begin("[ "); }

  bool end_array() { return end("] "); }

  bool key(std::string& value) { return open.back().insert(value).second && write(written("key", value)); }

  bool parse_error(std::size_t, const std::string& token, const OracleJson::exception&) {
    overflows = token.size() > kDoubleDigits && is_integer(token);
    return false;
  }
};

std::string written(Value value) {  // NOLINT(misc-no-recursion): as deep as the reader lets it be
  std::string text;
  switch (value.type()) {
    case TokenType::Null:
      return "null ";
    case TokenType::Bool:
      return written(value.token().boolean);
    case TokenType::Negative:
      return written(value.token().negative);
    case TokenType::Unsigned:
      return written(value.token().natural);
    case TokenType::LongInteger:
      return written("integer", value.text());
    case TokenType::Double:
      return written(value.token().real);
    case TokenType::String:
      return written("string", value.text());
    case TokenType::Key:
      return "a key instead of a value ";
    case TokenType::Object:
      value.each_member([&](std::string_view key, Value member) {
        text += written("key", key) + written(member);
        return true;
      });
      return "{ " + text + "} ";
    case TokenType::Array:
      value.each_item([&](Value item) {
        text += written(item);
        return true;
      });
      return "[ " + text + "] ";
  }
  return "nothing ";
}

}  // namespace

std::string difference_to_oracle(std::string_view text, std::size_t depth) {
  const Result<Tape> tape = read_json(text, depth);
  const std::string ours = tape ? written(tape->root()) : "refused";
  if (text.find('\0') != std::string_view::npos) {
    return tape ? "accepted with a NUL byte: " + ours : "";
  }
  Oracle oracle{depth};
  const bool accepted = OracleJson::sax_parse(text.data(), text.data() + text.size(), &oracle);
  const std::string theirs = accepted ? oracle.text : "refused";
  if (ours == theirs || (!tape && oracle.long_exponent) || (tape && oracle.overflows)) {
    return "";
  }
  return fmt::format("{}{}; the oracle: {}", ours, tape ? "" : ": " + tape.error().message, theirs);
}

}  // namespace gradsync::rpc
