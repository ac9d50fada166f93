#pragma once
// The strict JSON reader. One SAX pass checks the text and leaves a flat tape of tokens, in memory that the next
// message uses again; typed reading (field_reader.hpp) then walks the tape straight into structs.
//
// Refused: what is not JSON, invalid UTF-8 (lone surrogates included), nesting deeper than `depth`, a key twice in one
// object, a number outside the range of a double, an exponent beyond 32 bits. An integer outside [−2^63, 2^64) is kept
// as text: no field takes it, and the field that holds it is named in the reply to its request.

#include "base/error.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::rpc {

enum class TokenType : std::uint8_t { Null, Bool, Negative, Unsigned, LongInteger, Double, String, Key, Object, Array };

struct TextSlice {  // trivial, to live in a union
  std::uint32_t offset;
  std::uint32_t length;
};

/// `end` is the index behind the value's last token, so that any value is skipped in one step.
struct Token {
  TokenType type = TokenType::Null;
  bool boolean = false;
  std::uint32_t end = 0;

  union {
    std::int64_t negative;
    std::uint64_t natural = 0;
    double real;
    TextSlice text;
  };
};

class Value;

class Tape {
 public:
  [[nodiscard]] Value root() const;

  [[nodiscard]] const Token& token(std::uint32_t index) const { return tokens_[index]; }

  [[nodiscard]] std::string_view text(TextSlice slice) const {
    return std::string_view(text_).substr(slice.offset, slice.length);
  }

 private:
  friend class TapeBuilder;
  std::vector<Token> tokens_;
  std::string text_;  ///< all strings and keys, unescaped, one behind the other
};

/// A position on a tape. Valid as long as its tape.
class Value {
 public:
  Value(const Tape& tape, std::uint32_t index) : tape_(&tape), index_(index) {}

  [[nodiscard]] TokenType type() const { return token().type; }

  [[nodiscard]] bool is(TokenType type) const { return token().type == type; }

  [[nodiscard]] bool is_integer() const { return is(TokenType::Negative) || is(TokenType::Unsigned); }

  [[nodiscard]] const Token& token() const { return tape_->token(index_); }

  [[nodiscard]] std::string_view text() const { return tape_->text(token().text); }

  /// Calls `visit(Value)` for each item of an array until it returns false.
  template <typename Visit>
  bool each_item(Visit visit) const {
    for (std::uint32_t at = index_ + 1; at < token().end; at = tape_->token(at).end) {
      if (!visit(Value(*tape_, at))) {
        return false;
      }
    }
    return true;
  }

  /// The items of an array.
  [[nodiscard]] std::int64_t item_count() const {
    std::int64_t count = 0;
    each_item([&](Value) {
      ++count;
      return true;
    });
    return count;
  }

  /// Calls `visit(std::string_view key, Value)` for each member of an object until it returns false.
  template <typename Visit>
  bool each_member(Visit visit) const {
    for (std::uint32_t at = index_ + 1; at < token().end; at = tape_->token(at + 1).end) {
      if (!visit(tape_->text(tape_->token(at).text), Value(*tape_, at + 1))) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] std::optional<Value> member(std::string_view key) const;

  /// For messages: `"wq"`, `1.5`, `true`, `null`, `an object`. Long strings are cut.
  [[nodiscard]] std::string describe() const;

 private:
  const Tape* tape_;
  std::uint32_t index_;
};

class TapeBuilder;

/// Reads one text after the other.
class TapeReader {
 public:
  explicit TapeReader(std::size_t depth);
  ~TapeReader();

  /// The root, valid until the next text is read. Errors: ParseError; the message says where.
  [[nodiscard]] Result<Value> read(std::string_view text);

 private:
  std::unique_ptr<TapeBuilder> builder_;
};

/// The same for one text.
[[nodiscard]] Result<Tape> read_json(std::string_view text, std::size_t depth);

}  // namespace gradsync::rpc
