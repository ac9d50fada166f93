#pragma once
// Manual pages in roff, with the macros of man(7).

#include "app/config/options.hpp"
#include "app/manual/command_text.hpp"

namespace gradsync::app {

/// gradsyncd(1): every command with its options. `date`: YYYY-MM-DD, or empty.
[[nodiscard]] std::string command_page(const CommandText& program, const std::string& date);

/// gradsyncd.toml(5): every key with its default.
[[nodiscard]] std::string settings_page(const Options& defaults, const std::string& date);

}  // namespace gradsync::app
