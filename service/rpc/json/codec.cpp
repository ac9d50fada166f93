#include "rpc/json/codec.hpp"

#include "rpc/json/plain_text.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace gradsync::rpc {

namespace {

/// A whole decimal text, as clients send integers above 2^53.
template <typename Integer>
std::optional<Integer> parse_decimal(std::string_view text) {
  Integer number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc{} || end != text.data() + text.size() || text.empty()) {
    return std::nullopt;
  }
  return number;
}

template <typename Integer>
bool fits(Integer number, Bounds bounds) {
  return std::cmp_greater_equal(number, bounds.least) && std::cmp_less_equal(number, bounds.most);
}

Bounds with_floor_zero(Bounds bounds) { return {std::max<std::int64_t>(bounds.least, 0), bounds.most}; }

Json integer_schema(Bounds bounds, bool decimal_text) {
  Json schema;
  if (decimal_text) {
    schema["type"] = Json::array({"integer", "string"});
    schema["pattern"] = bounds.least >= 0 ? "^[0-9]{1,20}$" : "^-?[0-9]{1,20}$";
  } else {
    schema["type"] = "integer";
  }
  if (bounds.least != Bounds{}.least) {
    schema["minimum"] = bounds.least;
  }
  if (bounds.most != Bounds{}.most) {
    schema["maximum"] = bounds.most;
  }
  return schema;
}

}  // namespace

bool Codec<bool>::read(FieldReader& reader, Value value, bool& out, Bounds) {
  if (!value.is(TokenType::Bool)) {
    return reader.wrong_type(value, "true or false");
  }
  out = value.token().boolean;
  return true;
}

void Codec<bool>::write(JsonWriter& writer, const bool& value) { writer.value(value); }

Json Codec<bool>::schema(SchemaBuilder&, Bounds) { return Json{{"type", "boolean"}}; }

bool Codec<std::int64_t>::read(FieldReader& reader, Value value, std::int64_t& out, Bounds bounds) {
  switch (value.type()) {
    case TokenType::Negative:
      out = value.token().negative;
      break;
    case TokenType::Unsigned:
      if (!std::in_range<std::int64_t>(value.token().natural)) {
        return reader.out_of_range(value.describe(), "", {bounds.least, std::numeric_limits<std::int64_t>::max() - 1});
      }
      out = static_cast<std::int64_t>(value.token().natural);
      break;
    case TokenType::String: {
      const auto number = parse_decimal<std::int64_t>(value.text());
      if (!number) {
        return reader.wrong_type(value, "an integer");
      }
      out = *number;
      break;
    }
    case TokenType::LongInteger:
      return reader.too_long(value);
    default:
      return reader.wrong_type(value, "an integer");
  }
  return fits(out, bounds) || reader.out_of_range(value.describe(), "", bounds);
}

void Codec<std::int64_t>::write(JsonWriter& writer, const std::int64_t& value) { writer.value(value); }

Json Codec<std::int64_t>::schema(SchemaBuilder&, Bounds bounds) { return integer_schema(bounds, true); }

bool Codec<std::uint64_t>::read(FieldReader& reader, Value value, std::uint64_t& out, Bounds bounds) {
  bounds = with_floor_zero(bounds);
  switch (value.type()) {
    case TokenType::Negative:
      return reader.out_of_range(value.describe(), "", bounds);
    case TokenType::Unsigned:
      out = value.token().natural;
      break;
    case TokenType::String: {
      const auto number = parse_decimal<std::uint64_t>(value.text());
      if (!number) {
        return reader.wrong_type(value, "an integer");
      }
      out = *number;
      break;
    }
    case TokenType::LongInteger:
      return reader.too_long(value);
    default:
      return reader.wrong_type(value, "an integer");
  }
  const bool unlimited = bounds.most == Bounds{}.most && std::cmp_greater_equal(out, bounds.least);
  return unlimited || fits(out, bounds) || reader.out_of_range(value.describe(), "", bounds);
}

void Codec<std::uint64_t>::write(JsonWriter& writer, const std::uint64_t& value) { writer.value(value); }

Json Codec<std::uint64_t>::schema(SchemaBuilder&, Bounds bounds) {
  return integer_schema(with_floor_zero(bounds), true);
}

bool Codec<std::uint32_t>::read(FieldReader& reader, Value value, std::uint32_t& out, Bounds bounds) {
  const Bounds natural{
      std::max<std::int64_t>(bounds.least, 0),
      std::min<std::int64_t>(bounds.most, std::numeric_limits<std::uint32_t>::max())};
  if (value.is(TokenType::LongInteger)) {
    return reader.too_long(value);
  }
  if (!value.is_integer()) {
    return reader.wrong_type(value, "an integer");
  }
  if (value.is(TokenType::Negative) || !fits(value.token().natural, natural)) {
    return reader.out_of_range(value.describe(), "", natural);
  }
  out = static_cast<std::uint32_t>(value.token().natural);
  return true;
}

void Codec<std::uint32_t>::write(JsonWriter& writer, const std::uint32_t& value) {
  writer.value(static_cast<std::uint64_t>(value));
}

Json Codec<std::uint32_t>::schema(SchemaBuilder&, Bounds bounds) {
  return integer_schema(with_floor_zero(bounds), false);
}

bool Codec<double>::read(FieldReader& reader, Value value, double& out, Bounds bounds) {
  switch (value.type()) {
    case TokenType::Negative:
      out = static_cast<double>(value.token().negative);
      break;
    case TokenType::Unsigned:
      out = static_cast<double>(value.token().natural);
      break;
    case TokenType::Double:
      out = value.token().real;
      break;
    case TokenType::String:
      if (value.text() == "NaN") {
        out = std::numeric_limits<double>::quiet_NaN();
      } else if (value.text() == "Infinity") {
        out = std::numeric_limits<double>::infinity();
      } else if (value.text() == "-Infinity") {
        out = -std::numeric_limits<double>::infinity();
      } else {
        return reader.wrong_type(value, "a number, \"NaN\", \"Infinity\" or \"-Infinity\"");
      }
      break;
    case TokenType::LongInteger:
      return reader.too_long(value);
    default:
      return reader.wrong_type(value, "a number");
  }
  constexpr Bounds kNone;
  const bool above = bounds.least == kNone.least || out >= static_cast<double>(bounds.least);  // false for NaN
  const bool below = bounds.most == kNone.most || out <= static_cast<double>(bounds.most);
  return (above && below) || reader.out_of_range(value.describe(), "", bounds);
}

void Codec<double>::write(JsonWriter& writer, const double& value) { writer.value(value); }

Json Codec<double>::schema(SchemaBuilder&, Bounds bounds) {
  Json schema{{"type", Json::array({"number", "string"})}, {"pattern", "^(NaN|-?Infinity)$"}};
  if (bounds.least != Bounds{}.least) {
    schema["minimum"] = bounds.least;
  }
  if (bounds.most != Bounds{}.most) {
    schema["maximum"] = bounds.most;
  }
  return schema;
}

bool Codec<std::string>::read(FieldReader& reader, Value value, std::string& out, Bounds bounds) {
  if (!value.is(TokenType::String)) {
    return reader.wrong_type(value, "a string");
  }
  const std::string_view text = value.text();
  if (!fits(text.size(), bounds)) {
    return reader.out_of_range("a string of " + std::to_string(text.size()), " bytes", bounds);
  }
  if (const auto control = find_control_character(text)) {
    return reader.fail(
        fmt::format(
            "is {}; expected no control character (U+{:04X} at byte {})", value.describe(), control->code, control->at
        ),
        "names appear in log lines: send them without line ends, tabs and escapes"
    );
  }
  out = text;
  return true;
}

void Codec<std::string>::write(JsonWriter& writer, const std::string& value) { writer.value(std::string_view(value)); }

Json Codec<std::string>::schema(SchemaBuilder&, Bounds bounds) {
  Json schema{{"type", "string"}, {"pattern", "^[^\\u0000-\\u001f\\u007f-\\u009f\\u2028\\u2029]*$"}};
  if (bounds.least > 0) {
    schema["minLength"] = bounds.least;
  }
  if (bounds.most != Bounds{}.most) {
    schema["maxLength"] = bounds.most;
  }
  return schema;
}

bool Codec<SharedText>::read(FieldReader& reader, Value value, SharedText& out, Bounds bounds) {
  std::string text;
  const bool ok = Codec<std::string>::read(reader, value, text, bounds);
  out = SharedText(std::move(text));
  return ok;
}

void Codec<SharedText>::write(JsonWriter& writer, const SharedText& value) {
  writer.value(std::string_view(value.str()));
}

Json Codec<SharedText>::schema(SchemaBuilder& builder, Bounds bounds) {
  return Codec<std::string>::schema(builder, bounds);
}

}  // namespace gradsync::rpc
