#pragma once
// The staging memory of a plan: a ring. Blocks are given memory in the order in which they begin, and give it back in
// that order, so that it is never in pieces. Pages are there once they are used.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace gradsync::device {

/// Over memory of whichever device.
class StagingRing {
 public:
  StagingRing(std::byte* memory, std::uint64_t size_bytes) : memory_(memory), size_bytes_(size_bytes) {}

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }

  /// Memory that lies together, at a multiple of 64 bytes; nullptr: there is no room before others give theirs back.
  [[nodiscard]] std::byte* take(std::uint64_t bytes);

  /// What was taken first and is not given back.
  void give_back();

  void clear();  ///< all of it

  [[nodiscard]] std::uint64_t taken() const { return taken_; }

 private:
  [[nodiscard]] std::optional<std::uint64_t> place_for(std::uint64_t bytes) const;

  struct Piece {
    std::uint64_t at = 0;
    std::uint64_t bytes = 0;
  };

  std::byte* memory_;
  std::uint64_t size_bytes_;
  std::deque<Piece> pieces_;  ///< the oldest first
  std::uint64_t taken_ = 0;
};

/// Memory of the CPU.
class StagingMemory {
 public:
  /// Throws DeviceError OutOfMemory.
  explicit StagingMemory(std::uint64_t size_bytes);
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  [[nodiscard]] std::byte* begin() const { return memory_; }

 private:
  std::byte* memory_ = nullptr;
  std::uint64_t size_bytes_;
};

/// Both.
class Staging : private StagingMemory, public StagingRing {
 public:
  /// Throws DeviceError OutOfMemory.
  explicit Staging(std::uint64_t size_bytes)
      : StagingMemory(size_bytes), StagingRing(StagingMemory::begin(), size_bytes) {}
};

}  // namespace gradsync::device
