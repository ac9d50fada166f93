#include "app/cli/commands.hpp"
#include "app/cli/commit.hpp"
#include "app/cli/exit_code.hpp"
#include "base/version.hpp"

#include <fmt/format.h>

#include <iostream>
#include <string>

namespace gradsync::app {

namespace {

/// What a daemon can have, and whether this one was built with it. The kernels for GPUs are no part of it yet.
struct Feature {
  const char* key;
  const char* name;
  bool built;
};

constexpr Feature kFeatures[] = {{"cpu", "CPU", true}, {"cuda", "CUDA", false}, {"nccl", "NCCL", false}};

std::string features_as_json() {
  std::string text;
  for (const Feature& feature : kFeatures) {
    text += fmt::format(R"({}"{}":{})", text.empty() ? "" : ",", feature.key, feature.built);
  }
  return text;
}

std::string features_as_text() {
  std::string text;
  for (const Feature& feature : kFeatures) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", feature.name, feature.built ? "yes" : "no");
  }
  return text;
}

}  // namespace

int execute(const VersionCommand& command) {
  if (command.json) {
    std::cout << fmt::format(
                     R"({{"name":"gradsyncd","version":"{}","commit":"{}","protocol":{},"features":{{{}}}}})",
                     kVersion,
                     commit(),
                     kProtocolVersion,
                     features_as_json()
                 )
              << "\n";
  } else {
    std::cout << fmt::format(
        "gradsyncd {} (commit {}, protocol {}; {})\n", kVersion, commit(), kProtocolVersion, features_as_text()
    );
  }
  return kExitOk;
}

}  // namespace gradsync::app
