#pragma once
// Settings of a command: what the command line says, with this process's environment. Internal to app.

#include "app/cli/commands.hpp"
#include "app/config/configuration.hpp"
#include "plan/make_plan.hpp"

namespace gradsync::app {

[[nodiscard]] Result<Configuration> load_settings(const SettingsSource& source);

[[nodiscard]] plan::BucketSizes bucket_sizes(const EngineSection& engine);

/// The folder where the policies' states outlive the daemon; empty: they are not stored.
[[nodiscard]] std::string policy_directory(const Options& options);

/// One line and its hint on stderr.
void complain(const std::string& message, const std::string& hint);

/// Starts logging as the settings say.
void start_logging_as(const LogSection& log);

}  // namespace gradsync::app
