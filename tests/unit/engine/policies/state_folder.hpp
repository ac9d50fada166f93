#pragma once
// A folder for policy files, gone with the test, and files as bytes.

#include "engine/policies/policy_file.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <stdlib.h>
#include <string>
#include <string_view>
#include <utility>

namespace gradsync::engine {

class StateFolder {
 public:
  StateFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "gradsync-states-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }

  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;

  ~StateFolder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] const std::string& path() const { return path_; }

  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  /// The path of the only file.
  [[nodiscard]] std::string file() const {
    EXPECT_EQ(names().size(), 1U);
    return path_ + "/" + *names().begin();
  }

 private:
  std::string path_;
};

/// Files of this process may have so many bytes, as if the disk were full there.
class FileLimit {
 public:
  explicit FileLimit(std::size_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }

  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

inline std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Into the file that is there, so that its owner and mode stay.
inline void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline constexpr std::uint32_t kUid = 1000;

inline PolicyFile opened(const std::string& directory, const std::string& job = "train", std::uint32_t uid = kUid) {
  Result<PolicyFile> file = PolicyFile::open(directory, uid, job);
  EXPECT_TRUE(file) << file.error().message;
  return std::move(*file);
}

/// Stages, keeps and settles.
inline Result<void> store(
    PolicyFile& file, std::uint64_t word, std::string_view state, PolicyFile::Vote vote = PolicyFile::Vote::Alone
) {
  Result<void> stored = file.stage(word, state, vote);
  if (!stored) {
    return stored;
  }
  file.keep();
  return file.settle();
}

inline void stored(PolicyFile& file, std::uint64_t word, std::string_view state) {
  const Result<void> done = store(file, word, state);
  EXPECT_TRUE(done) << done.error().message;
}

/// What a file of these bytes has under this word.
inline std::optional<std::string> state_in(std::string_view bytes, std::uint64_t word) {
  const Result<PolicyFileContents> contents = read_policy_file(bytes, kUid, "train");
  EXPECT_TRUE(contents) << contents.error().message;
  for (std::size_t slot = 0; contents && slot < contents->slots.size(); ++slot) {
    if (contents->slots[slot].word == word) {
      return std::string(contents->slots[slot].state());
    }
  }
  return std::nullopt;
}

/// A state of this word, which no other word has.
inline std::string state_of(std::uint64_t word, std::size_t bytes = 300) {
  std::string state = "state of " + std::to_string(word) + ": ";
  while (state.size() < bytes) {
    state += static_cast<char>(state.size() * 31 + word * 7);
  }
  return state;
}

}  // namespace gradsync::engine
