#pragma once
// Generated files that are committed: a test compares, and GRADSYNC_REGENERATE=1 writes them anew.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace gradsync::rpc {

inline std::string committed_path(const std::string& name) { return std::string(GRADSYNC_SOURCE_DIR) + "/" + name; }

inline std::string read_committed(const std::string& name) {
  std::ifstream file(committed_path(name));
  EXPECT_TRUE(file) << name << " cannot be read";
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void expect_committed(const std::string& name, const std::string& generated) {
  const char* regenerate = std::getenv("GRADSYNC_REGENERATE");  // NOLINT(concurrency-mt-unsafe): one thread
  if (regenerate != nullptr && std::string(regenerate) == "1") {
    std::ofstream(committed_path(name)) << generated;
    return;
  }
  EXPECT_TRUE(read_committed(name) == generated) << name << " is out of date: run this test with GRADSYNC_REGENERATE=1";
}

}  // namespace gradsync::rpc
