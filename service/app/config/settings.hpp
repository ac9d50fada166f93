#pragma once
// Settings of a command: what the command line says, with this process's environment. Internal to app.

#include "app/cli/commands.hpp"
#include "app/config/configuration.hpp"
#include "plan/make_plan.hpp"

#include <string>
#include <vector>

namespace gradsync::app {

[[nodiscard]] Result<Configuration> load_settings(const SettingsSource& source);

/// The flags that set every key of [gpu] and [nccl] to these values, for another process of this program:
/// "--gpu-kernels", "off".
[[nodiscard]] std::vector<std::string> flags_of(const GpuSection& gpu, const NcclSection& nccl);

[[nodiscard]] plan::BucketSizes bucket_sizes(const EngineSection& engine);

/// The folder where the policies' states outlive the daemon; empty: they are not stored.
[[nodiscard]] std::string policy_directory(const Options& options);

/// The folder of the flight recorder's dumps; empty: there are none.
[[nodiscard]] std::string blackbox_folder(const Options& options);

/// One line and its hint on stderr.
void complain(const std::string& message, const std::string& hint);

/// Starts logging as the settings say.
void start_logging_as(const LogSection& log);

}  // namespace gradsync::app
