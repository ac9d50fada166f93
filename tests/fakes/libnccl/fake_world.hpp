#pragma once
// A communicator of the fake NCCL as its members see it: a file in memory that all of them map, whether they are
// threads or processes. A unique id is its name. Operations go through it in pieces: each member writes its piece into
// its own slot, and all read all slots. The sums are real, in an order that rotates from piece to piece, as in a ring.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace gradsync::fakes {

inline constexpr std::size_t kMostRanks = 16;
inline constexpr std::size_t kSlotBytes = 32U << 10;

struct FakeCall {
  std::uint32_t kind = 0;
  std::uint32_t type = 0;
  std::uint64_t elements = 0;
  friend bool operator==(const FakeCall&, const FakeCall&) = default;
};

struct FakeSeat {
  std::atomic<std::int32_t> process;   ///< 0: nobody has come
  std::atomic<std::uint32_t> left;     ///< its communicator was aborted
  std::atomic<std::uint64_t> begun;    ///< operations
  std::atomic<std::uint64_t> written;  ///< pieces, of all operations
  std::atomic<std::uint64_t> read;     ///< likewise
  FakeCall call;                       ///< of the last operation that was begun
  alignas(64) std::byte slot[kSlotBytes];
};

struct FakeMemory {
  std::atomic<std::uint32_t> ranks;  ///< 0: nobody has come
  std::atomic<std::uint32_t> joined;
  FakeSeat seats[kMostRanks];
};

class FakeWorld {
 public:
  /// The name of a new one.
  [[nodiscard]] static std::string create();

  /// Removes the name; members that have mapped it keep it.
  static void remove(const std::string& name);

  /// Throws std::runtime_error where there is none of that name.
  explicit FakeWorld(const std::string& name);
  ~FakeWorld();
  FakeWorld(const FakeWorld&) = delete;
  FakeWorld& operator=(const FakeWorld&) = delete;

  /// Takes the seat. Empty: it has it; else why not.
  [[nodiscard]] std::string join(int ranks, int rank);

  [[nodiscard]] FakeMemory& memory() const { return *memory_; }

  /// A member whose process has ended, or that has left; −1: none.
  [[nodiscard]] int gone() const;

 private:
  FakeMemory* memory_ = nullptr;
};

}  // namespace gradsync::fakes
