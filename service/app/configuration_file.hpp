#pragma once
// The TOML side of the configuration. Internal to app.

#include "app/options.hpp"
#include "base/error.hpp"

#include <map>
#include <string>

namespace gradsync::app {

/// Reads the file into `options`; returns "section.key" → "file path:line" for every key it has.
[[nodiscard]] Result<std::map<std::string, std::string>> read_configuration_file(
    const std::string& path, Options& options
);

}  // namespace gradsync::app
