#pragma once
// Writes JSON text straight into a string: replies need no tree. Doubles are the shortest text that reads back to the
// same bits; NaN and infinities are the strings "NaN", "Infinity", "-Infinity"; integers beyond ±2^53 are decimal
// strings. The memory of a text that is not needed any more may be given to it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace gradsync::rpc {

class JsonWriter {
 public:
  explicit JsonWriter(std::string memory = {}) : text_(std::move(memory)) { text_.clear(); }

  void begin_object() { open('{'); }

  void end_object() { close('}'); }

  void begin_array() { open('['); }

  void end_array() { close(']'); }

  void key(std::string_view name);
  void value(bool value);
  void value(std::int64_t value);
  void value(std::uint64_t value);
  void value(double value);
  void value(std::string_view value);
  void null();
  void raw(std::string_view json);  ///< a whole value, already JSON

  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  void separate();
  template <typename Integer>
  void integer(Integer value, bool exact);
  void open(char bracket);
  void close(char bracket);

  std::string text_;
  bool first_ = true;  ///< nothing written yet in the innermost container
};

/// `text` as a JSON string, quotes included. Invalid UTF-8 becomes U+FFFD.
[[nodiscard]] std::string quoted(std::string_view text);

}  // namespace gradsync::rpc
