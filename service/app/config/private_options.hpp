#pragma once
// The settings of the daemon that `gradsyncd run` starts: it serves one wrapped command only. Internal to app.

#include "app/config/configuration.hpp"

namespace gradsync::app {

/// The socket lies in `folder`, for this user only. A port is opened only where a flag or the environment asked for
/// one: a file is the machine's, written for the daemon that serves everybody. It logs warnings, unless told otherwise.
[[nodiscard]] Options private_options(const Configuration& configuration, const std::string& folder);

}  // namespace gradsync::app
