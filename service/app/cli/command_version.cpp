#include "app/cli/commands.hpp"
#include "app/cli/commit.hpp"
#include "app/cli/exit_code.hpp"
#include "app/daemon/gpu_workers.hpp"
#include "base/version.hpp"

#include <fmt/format.h>

#include <iostream>
#include <string>
#include <vector>

namespace gradsync::app {

namespace {

/// What a daemon can have, and whether this one has it. CUDA: the kernels lie beside it.
struct Feature {
  const char* key;
  const char* name;
  bool here;
};

std::vector<Feature> features() {
  return {{"cpu", "CPU", true}, {"cuda", "CUDA", !find_kernels("").empty()}, {"nccl", "NCCL", false}};
}

std::string features_as_json() {
  std::string text;
  for (const Feature& feature : features()) {
    text += fmt::format(R"({}"{}":{})", text.empty() ? "" : ",", feature.key, feature.here);
  }
  return text;
}

std::string features_as_text() {
  std::string text;
  for (const Feature& feature : features()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", feature.name, feature.here ? "yes" : "no");
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
