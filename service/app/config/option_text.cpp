#include "app/config/option_text.hpp"

#include "base/text/text.hpp"
#include "rpc/json/plain_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace gradsync::app {

namespace {

template <typename Number>
bool parse_number(std::string_view text, Number& value, int base) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

}  // namespace

std::optional<std::string> set_from_text(std::string& field, const std::string& text, const FieldRule& rule) {
  field = text;
  return check(field, rule);
}

std::optional<std::string> set_from_text(std::int64_t& field, const std::string& text, const FieldRule& rule) {
  if (!parse_number(text, field, 10)) {
    return "expected an integer";
  }
  return check(field, rule);
}

std::optional<std::string> set_from_text(FileMode& field, const std::string& text, const FieldRule& rule) {
  std::string_view digits = text;
  if (digits.starts_with("0o")) {
    digits.remove_prefix(2);
  }
  if (!parse_number(digits, field.value, 8)) {
    return "expected an octal mode like 0660";
  }
  return check(field, rule);
}

std::optional<std::string> set_from_text(
    std::vector<std::int64_t>& field, const std::string& text, const FieldRule& rule
) {
  field.clear();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    std::int64_t value = 0;
    if (!parse_number(std::string_view{text}.substr(at, comma - at), value, 10)) {
      return "expected integers separated by commas";
    }
    field.push_back(value);
    at = comma + 1;
  }
  return check(field, rule);
}

std::optional<std::string> check(const std::string& value, const FieldRule& rule) {
  for (std::size_t at = 0; at < value.size();) {
    const std::size_t length = utf8_length(value, at);
    if (length == 0) {
      return "expected UTF-8";
    }
    at += length;
  }
  if (rpc::find_control_character(value)) {
    return "expected a text without control characters";
  }
  if (rule.choices.empty() || std::find(rule.choices.begin(), rule.choices.end(), value) != rule.choices.end()) {
    return std::nullopt;
  }
  return fmt::format("expected one of {}", fmt::join(rule.choices, ", "));
}

std::optional<std::string> check(std::int64_t value, const FieldRule& rule) {
  if (value >= rule.least && value <= rule.most) {
    return std::nullopt;
  }
  return rule.most == std::numeric_limits<std::int64_t>::max()
             ? fmt::format("expected at least {}", rule.least)
             : fmt::format("expected {} to {}", rule.least, rule.most);
}

std::optional<std::string> check(FileMode value, const FieldRule&) {
  return value.value <= 0777 ? std::nullopt : std::optional<std::string>("expected an octal mode up to 0777");
}

std::optional<std::string> check(const std::vector<std::int64_t>& values, const FieldRule& rule) {
  for (const std::int64_t value : values) {
    if (auto problem = check(value, rule)) {
      return problem;
    }
  }
  return std::nullopt;
}

std::string toml_text(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else {
      text += c;
    }
  }
  return text + "\"";
}

std::string toml_text(std::int64_t value) { return std::to_string(value); }

std::string toml_text(FileMode value) { return fmt::format("0o{:o}", value.value); }

std::string toml_text(const std::vector<std::int64_t>& values) { return fmt::format("[{}]", fmt::join(values, ", ")); }

std::string value_name(const std::string& /*value*/, const FieldRule& rule) {
  return rule.choices.empty() ? std::string(rule.value) : fmt::format("{}", fmt::join(rule.choices, "|"));
}

std::string value_name(std::int64_t /*value*/, const FieldRule& /*rule*/) { return "N"; }

std::string value_name(FileMode /*value*/, const FieldRule& /*rule*/) { return "MODE"; }

std::string value_name(const std::vector<std::int64_t>& /*values*/, const FieldRule& /*rule*/) { return "N,N"; }

}  // namespace gradsync::app
