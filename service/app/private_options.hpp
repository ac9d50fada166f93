#pragma once
// What `gradsyncd run` makes of the settings: its daemon serves one wrapped command and nobody else. Internal to app.

#include "app/configuration.hpp"

namespace gradsync::app {

/// The socket lies in `folder`, for this user only. A port is opened only where a flag or the environment asked for
/// one: a file is the machine's, written for the daemon that serves everybody. It logs warnings, unless told otherwise.
[[nodiscard]] Options private_options(const Configuration& configuration, const std::string& folder);

}  // namespace gradsync::app
