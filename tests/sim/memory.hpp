#pragma once
// What a rank's process maps: its own memory, and the record of a job's attempts.

#include "base/unique_fd.hpp"
#include "sim/trainers/truth.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace gradsync::sim {

/// Memory of a descriptor, mapped here. One that is only read keeps no descriptor: a world may have thousands.
class Mapping {
 public:
  Mapping(UniqueFd fd, std::size_t bytes, bool writes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory_); }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  [[nodiscard]] UniqueFd descriptor() const;

 private:
  UniqueFd fd_;
  std::size_t bytes_;
  void* memory_;
};

/// The record of a job's attempts, as a rank reads it.
class SeenRecord {
 public:
  explicit SeenRecord(std::shared_ptr<const Mapping> memory) : memory_(std::move(memory)) {}

  [[nodiscard]] std::uint64_t begun() const { return word_at(16); }

  [[nodiscard]] std::uint64_t done() const { return word_at(24); }

  [[nodiscard]] std::uint64_t voted() const { return word_at(32); }

  [[nodiscard]] std::optional<Told> told(std::int64_t rank) const;

 private:
  [[nodiscard]] std::uint64_t word_at(std::size_t offset) const;

  std::shared_ptr<const Mapping> memory_;
};

}  // namespace gradsync::sim
