#pragma once
// The folder in which dumps of the flight recorder are kept: a file each, written as a whole or not at all. Of each
// owner of jobs the last few are kept. It is made where it is missing, with its parent, and nobody but this user may
// write to it. One owner, one thread.

#include "base/error.hpp"
#include "base/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gradsync::app {

/// What a dump is named by: "20261128T173602123Z-0007.1000.llm.node-a.jsonl". Names in order are in the order of time.
struct DumpName {
  std::int64_t unix_us = 0;
  std::uint64_t number = 0;  ///< counts the dumps of this daemon
  std::uint32_t uid = 0;
  std::string job;
  std::string node;

  /// Characters of job and node that a file should not have are replaced, and long ones cut.
  [[nodiscard]] std::string file() const;
};

class DumpFolder {
 public:
  DumpFolder(std::string path, std::size_t kept_files) : path_(std::move(path)), kept_files_(kept_files) {}

  /// Errors: InsufficientMemory where there is no room; else InternalError. Then nothing of the file is left.
  [[nodiscard]] Result<void> write(const std::string& name, std::string_view text);

 private:
  [[nodiscard]] Result<void> open();
  [[nodiscard]] Result<void> write_new(const std::string& name, std::string_view text) const;
  /// Removes the oldest of this owner beyond those that are kept.
  void remove_old(const std::string& newest) const;
  [[nodiscard]] Error failed(std::string_view what, int error) const;

  std::string path_;
  std::size_t kept_files_;
  UniqueFd folder_;  ///< open while a dump is written
};

}  // namespace gradsync::app
