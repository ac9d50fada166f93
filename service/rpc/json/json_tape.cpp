#include "rpc/json/json_tape.hpp"

#include "rpc/json/json_parser.hpp"
#include "rpc/json/plain_text.hpp"

#include <fmt/format.h>

namespace gradsync::rpc {

Result<Tape> read_json(std::string_view text, std::size_t depth) {
  TapeBuilder builder(depth);
  if (auto read = parse_json(text, builder); !read) {
    return read.error();
  }
  return std::move(builder.tape());
}

TapeReader::TapeReader(std::size_t depth) : builder_(std::make_unique<TapeBuilder>(depth)) {}

TapeReader::~TapeReader() = default;

Result<Value> TapeReader::read(std::string_view text) {
  if (auto read = parse_json(text, *builder_); !read) {
    return read.error();
  }
  return builder_->tape().root();
}

Value Tape::root() const { return {*this, 0}; }

std::optional<Value> Value::member(std::string_view key) const {
  std::optional<Value> found;
  if (is(TokenType::Object)) {
    each_member([&](std::string_view name, Value value) {
      if (name == key) {
        found = value;
      }
      return !found;
    });
  }
  return found;
}

std::string Value::describe() const {
  constexpr std::size_t kShownDigits = 60;
  switch (type()) {
    case TokenType::Null:
      return "null";
    case TokenType::Bool:
      return token().boolean ? "true" : "false";
    case TokenType::Negative:
      return fmt::format("{}", token().negative);
    case TokenType::Unsigned:
      return fmt::format("{}", token().natural);
    case TokenType::LongInteger:
      return fmt::format("the integer {}{}", text().substr(0, kShownDigits), text().size() > kShownDigits ? "…" : "");
    case TokenType::Double:
      return fmt::format("{}", token().real);
    case TokenType::String:
      return quote_escaped(text());
    case TokenType::Key:
      return "a key";
    case TokenType::Object:
      return "an object";
    case TokenType::Array:
      return "an array";
  }
  return "a value";
}

}  // namespace gradsync::rpc
