#pragma once
// The TOML side of the configuration. Internal to app.

#include "app/config/options.hpp"
#include "base/error.hpp"

#include <map>
#include <string>

namespace gradsync::app {

/// Reads the file into `options`; returns "section.key" → "file path:line" for every key it has.
[[nodiscard]] Result<std::map<std::string, std::string>> read_configuration_file(
    const std::string& path, Options& options
);

/// The same for the text of a file; `path` is only named.
[[nodiscard]] Result<std::map<std::string, std::string>> read_configuration_text(
    const std::string& text, const std::string& path, Options& options
);

}  // namespace gradsync::app
