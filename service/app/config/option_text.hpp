#pragma once
// Values of settings as texts: read from flags and the environment, and printed. Internal to app.

#include "app/config/option_fields.hpp"

#include <optional>
#include <string>

namespace gradsync::app {

/// Sets `field` from a text. nullopt: done; else what was expected.
[[nodiscard]] std::optional<std::string> set_from_text(
    std::string& field, const std::string& text, const FieldRule& rule
);
[[nodiscard]] std::optional<std::string> set_from_text(
    std::int64_t& field, const std::string& text, const FieldRule& rule
);
[[nodiscard]] std::optional<std::string> set_from_text(FileMode& field, const std::string& text, const FieldRule& rule);
[[nodiscard]] std::optional<std::string> set_from_text(
    std::vector<std::int64_t>& field, const std::string& text, const FieldRule& rule
);

/// Checks a value that has the right type.
[[nodiscard]] std::optional<std::string> check(const std::string& value, const FieldRule& rule);
[[nodiscard]] std::optional<std::string> check(std::int64_t value, const FieldRule& rule);
[[nodiscard]] std::optional<std::string> check(FileMode value, const FieldRule& rule);
[[nodiscard]] std::optional<std::string> check(const std::vector<std::int64_t>& values, const FieldRule& rule);

/// Writes a value as it stands in the file. Texts have been checked.
[[nodiscard]] std::string toml_text(const std::string& value);
[[nodiscard]] std::string toml_text(std::int64_t value);
[[nodiscard]] std::string toml_text(FileMode value);
[[nodiscard]] std::string toml_text(const std::vector<std::int64_t>& values);

/// What help and manual call the value: N, MODE, "text|json", or the name that its rule has for it.
[[nodiscard]] std::string value_name(const std::string& value, const FieldRule& rule);
[[nodiscard]] std::string value_name(std::int64_t value, const FieldRule& rule);
[[nodiscard]] std::string value_name(FileMode value, const FieldRule& rule);
[[nodiscard]] std::string value_name(const std::vector<std::int64_t>& values, const FieldRule& rule);

}  // namespace gradsync::app
