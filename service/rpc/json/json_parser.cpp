#include "rpc/json/json_parser.hpp"

#include "rpc/json/plain_text.hpp"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/src.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace gradsync::rpc {

namespace {

namespace json = boost::json;

/// The functions that basic_parser calls. A number comes with its whole text, because the text comes in one piece.
struct Handler {
  static constexpr std::size_t max_object_size = SIZE_MAX;
  static constexpr std::size_t max_array_size = SIZE_MAX;
  static constexpr std::size_t max_key_size = SIZE_MAX;
  static constexpr std::size_t max_string_size = SIZE_MAX;

  TapeBuilder& builder;

  /// The parser requires an error code from a handler that stops it.
  static bool go_on(bool accepted, json::error_code& error) {
    if (!accepted) {
      error = json::error::syntax;
    }
    return accepted;
  }

  bool on_document_begin(json::error_code&) { return true; }

  bool on_document_end(json::error_code&) { return true; }

  bool on_object_begin(json::error_code& error) { return go_on(builder.open(TokenType::Object), error); }

  bool on_array_begin(json::error_code& error) { return go_on(builder.open(TokenType::Array), error); }

  bool on_object_end(std::size_t, json::error_code& error) { return go_on(builder.close(), error); }

  bool on_array_end(std::size_t, json::error_code& error) { return go_on(builder.close(), error); }

  bool on_key_part(json::string_view part, std::size_t, json::error_code&) { return text_part(part); }

  bool on_key(json::string_view part, std::size_t, json::error_code&) {
    text_part(part);
    builder.key_end();
    return true;
  }

  bool on_string_part(json::string_view part, std::size_t, json::error_code&) { return text_part(part); }

  bool on_string(json::string_view part, std::size_t, json::error_code&) {
    text_part(part);
    builder.string_end();
    return true;
  }

  bool on_number_part(json::string_view, json::error_code&) { return true; }

  bool on_int64(std::int64_t value, json::string_view, json::error_code&) {
    builder.integer(value);
    return true;
  }

  bool on_uint64(std::uint64_t value, json::string_view, json::error_code&) {
    builder.natural(value);
    return true;
  }

  bool on_double(double, json::string_view text, json::error_code& error) {
    return go_on(builder.other_number({text.data(), text.size()}), error);
  }

  bool on_bool(bool value, json::error_code&) {
    builder.boolean(value);
    return true;
  }

  bool on_null(json::error_code&) {
    builder.null();
    return true;
  }

  bool on_comment_part(json::string_view, json::error_code&) { return true; }

  bool on_comment(json::string_view, json::error_code&) { return true; }

 private:
  bool text_part(json::string_view part) {
    builder.text_part({part.data(), part.size()});
    return true;
  }
};

/// The printable ASCII at the beginning, some of it.
std::string_view printable(std::string_view text) {
  constexpr std::size_t kShown = 20;
  const auto end = std::find_if(text.begin(), text.end(), [](char c) { return c < 0x20 || c >= 0x7F; });
  return text.substr(0, std::min(kShown, static_cast<std::size_t>(end - text.begin())));
}

std::string what_is_wrong(const json::error_code& error, std::string_view rest) {
  if (error == json::error::incomplete || rest.empty()) {
    return "the text ends too early";
  }
  if (error == json::error::extra_data) {
    return "text follows the value: " + quote_escaped(rest.substr(0, 1));
  }
  if (error == json::error::exponent_overflow) {
    return "an exponent beyond 32 bits";
  }
  if (error != json::error::syntax) {
    return error.message();
  }
  const auto byte = static_cast<unsigned char>(rest.front());
  if (byte < 0x20 || byte == 0x7F) {
    return fmt::format("control character 0x{:02X}: a string holds it only as \\u{:04X}", byte, byte);
  }
  if (byte >= 0x80) {
    return fmt::format("byte 0x{:02X}: ill-formed UTF-8, or outside a string", byte);
  }
  return "unexpected " + quote_escaped(printable(rest));
}

/// Says where and why parsing failed, with the last few characters that were read.
Error parse_failure(const json::error_code& error, std::string_view text, std::size_t at) {
  constexpr std::size_t kShown = 40;
  const std::string_view before = text.substr(0, at);
  const std::size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  std::string_view shown = before.substr(std::max(line_begin, at - std::min(at, kShown)));
  while (!shown.empty() && (static_cast<unsigned char>(shown.front()) & 0xC0U) == 0x80U) {
    shown.remove_prefix(1);
  }
  return make_error(
      ErrorCode::ParseError,
      fmt::format(
          "not JSON: line {}, column {}: {}{}",
          std::count(before.begin(), before.end(), '\n') + 1,
          at - line_begin + 1,
          what_is_wrong(error, text.substr(at)),
          shown.empty() ? "" : ", after " + quote_escaped(shown)
      )
  );
}

}  // namespace

Result<void> parse_json(std::string_view text, TapeBuilder& builder) {
  if (text.size() >= UINT32_MAX) {
    return make_error(ErrorCode::ParseError, "longer than 4 GiB");
  }
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const std::size_t begin = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  builder.begin(text.size());
  json::parse_options options;
  options.max_depth = SIZE_MAX;  // the builder refuses before
  json::basic_parser<Handler> parser(options, Handler{builder});
  json::error_code error;
  const std::size_t end = begin + parser.write_some(false, text.data() + begin, text.size() - begin, error);
  if (builder.refused()) {
    return builder.refusal();
  }
  if (!error && end < text.size()) {
    error = json::error::extra_data;
  }
  if (error) {
    return parse_failure(error, text, end);
  }
  return {};
}

}  // namespace gradsync::rpc
