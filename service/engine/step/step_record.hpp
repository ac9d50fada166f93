#pragma once
// The begin and the end of a job's attempts, in memory that its ranks map for reading and that outlives the daemon: a
// rank that comes back to another incarnation learns from it whether its step was done, lost, or never touched.
//
// Thread: io. Layout, little endian, in bytes: 0 magic "gsrecrd1"; 8 u32 world_size; 12 u32 slot_bytes; 16 u64 begun;
// 24 u64 done; 32 u64 voted; 4096 + rank · slot_bytes: u64 length and as many bytes of text. The words are those of
// `attempt_word`. Invariants: `begun` is stored before a command that writes gradients is submitted, the texts before
// `voted` and `done`, `voted` before this node votes for an attempt of several nodes, and `done` before any rank is
// answered. The first page and those of the ranks that are here exist before anything is stored in them, so that no
// store can fail; ranks of other nodes have an offset and no pages. The seals forbid every further mapping for writing.

#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "device/memory/arena.hpp"
#include "engine/epoch/local_ranks.hpp"
#include "engine/types.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace gradsync::engine {

class StepRecord {
 public:
  /// For a plan whose longest answer has `text_bytes`. Errors: InsufficientMemory, LimitExceeded, InternalError.
  [[nodiscard]] static Result<std::shared_ptr<StepRecord>> create(
      std::string plan_digest,
      const LocalRanks& ranks,
      std::size_t text_bytes,
      const device::MemoryHeadroom& headroom = device::memory_headroom()
  );
  ~StepRecord();
  StepRecord(const StepRecord&) = delete;
  StepRecord& operator=(const StepRecord&) = delete;

  [[nodiscard]] const std::string& plan_digest() const { return plan_digest_; }

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }

  /// Pages for the texts of these ranks, where others had the seats before. Errors as `create`.
  [[nodiscard]] Result<void> make_room(const LocalRanks& ranks);

  /// Bytes that a text may have.
  [[nodiscard]] std::size_t room() const;

  /// The gradients of this attempt are about to change.
  void begin(std::uint64_t word);
  /// Keeps the answer to a rank. A text that is too long is not kept.
  void keep(std::size_t rank, std::string_view text);
  /// Every text is kept, and this node is about to vote that the attempt is done. Only other nodes know whether it is.
  void vote(std::uint64_t word);
  /// Every text is kept, and no rank was answered yet.
  void finish(std::uint64_t word);
  /// Nothing is stored from now on.
  void close();

  /// Another descriptor of it; none when the daemon has no more.
  [[nodiscard]] UniqueFd descriptor() const;

 private:
  StepRecord(std::string plan_digest, UniqueFd fd, std::byte* memory, std::uint64_t size_bytes, std::size_t slot_bytes);
  void store(std::size_t offset, std::uint64_t word);

  std::string plan_digest_;
  UniqueFd fd_;
  std::byte* memory_;
  std::uint64_t size_bytes_;
  std::size_t slot_bytes_;
};

}  // namespace gradsync::engine
