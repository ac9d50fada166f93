#pragma once
// A tape being written: one call for each thing that a parser meets. Holds the rules that no JSON parser has: depth, no
// key twice, doubles in range. Its memory is used again by the next text.
//
// The calls that can refuse return false and leave the reason in `refusal`.

#include "rpc/json/json_tape.hpp"

#include <optional>
#include <string>
#include <vector>

namespace gradsync::rpc {

class TapeBuilder {
 public:
  explicit TapeBuilder(std::size_t depth) : depth_(depth) {}

  void begin(std::size_t text_size);

  void null() { push(TokenType::Null); }

  void boolean(bool value) { push(TokenType::Bool).boolean = value; }

  void integer(std::int64_t value) {
    if (value < 0) {
      push(TokenType::Negative).negative = value;
    } else {  // "-0" is 0
      natural(static_cast<std::uint64_t>(value));
    }
  }

  void natural(std::uint64_t value) { push(TokenType::Unsigned).natural = value; }

  /// A number that is not an integer of 64 bits, as it is written.
  [[nodiscard]] bool other_number(std::string_view text);

  /// Strings and keys come in parts, unescaped; `text_part` says nothing about which of the two it is.
  void text_part(std::string_view part) { tape_.text_ += part; }

  void string_end() { push(TokenType::String).text = take_text(); }

  void key_end();
  [[nodiscard]] bool open(TokenType type);
  [[nodiscard]] bool close();  ///< false: a key appears twice

  [[nodiscard]] const Error& refusal() const { return refusal_; }

  [[nodiscard]] bool refused() const { return refused_; }

  [[nodiscard]] Tape& tape() { return tape_; }

 private:
  struct OpenContainer {
    std::uint32_t index = 0;
    std::vector<TextSlice> keys;  ///< of an object
  };

  Token& push(TokenType type) {
    Token& token = tape_.tokens_.emplace_back();
    token.type = type;
    token.end = static_cast<std::uint32_t>(tape_.tokens_.size());
    return token;
  }

  /// The parts that came since the last string or key.
  TextSlice take_text() {
    const auto end = static_cast<std::uint32_t>(tape_.text_.size());
    const TextSlice slice{text_begin_, end - text_begin_};
    text_begin_ = end;
    return slice;
  }

  /// A key that is there twice. Changes the order of the keys.
  [[nodiscard]] std::optional<std::string_view> repeated(std::vector<TextSlice>& keys) const;
  bool refuse(std::string message, std::string hint = {});

  std::size_t depth_;
  Tape tape_;
  std::uint32_t text_begin_ = 0;
  std::vector<OpenContainer> open_;  ///< the first `open_count_` are open; the others keep their memory
  std::size_t open_count_ = 0;
  Error refusal_;
  bool refused_ = false;
};

}  // namespace gradsync::rpc
