#pragma once
// The memory of a job's policies in a file that outlives the daemon: the states after the last two steps, each under
// the word of its attempt (`attempt_word`), because a rank may know the step that was staged last as done, or only the
// one before.
//
// A state is staged before anybody can know that its step is done, and kept when it is. What was staged and not kept is
// written over by the next; a daemon that opens the file finds it all the same, under its word. Where other nodes may
// fail the step, it is pending until its step is done for everybody, and until then is not the newest: also a daemon
// that was killed between a vote and its verdict leaves a file that names the state before.
//
// Thread: one owner. The file is read when it is opened and never again, so that a step waits for no disk; staging is
// one pwrite, because a mapping would end the daemon where the disk is full. Keeping writes nothing; settling a state
// that was pending writes 8 bytes in place. A daemon that is killed between any two instructions leaves the state that
// was kept last. Only a state that is larger than all before makes a new file, which is renamed over the old one.

#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "engine/policies/policy_file_bytes.hpp"

#include <sys/stat.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradsync::engine {

class PolicyFile {
 public:
  struct Stored {
    std::uint64_t word = 0;
    std::string state;
  };

  /// Whether other nodes may fail the step of a state that is staged.
  enum class Vote { Alone, Pending };

  /// States beyond it are refused. There is room for a file of such states and for the one that takes its place.
  static constexpr std::size_t kMostStateBytes = std::size_t{60} << 20;

  /// The file of this job in `directory`, which is made where it is missing and only this user may write, locked for as
  /// long as it is open. Contents that are damaged, or not of this job, are renamed to "NAME.damaged-N" with a warning,
  /// and the file begins anew. For one that is made here, others of this uid are removed (`make_room`). Errors:
  /// InvalidParams with path `job` for a name that is too long; InsufficientMemory, LimitExceeded; else InternalError:
  /// another daemon has it, or it cannot be trusted by its kind, owner or mode.
  [[nodiscard]] static Result<PolicyFile> open(const std::string& directory, std::uint32_t uid, const std::string& job);

  PolicyFile(PolicyFile&&) = default;
  PolicyFile& operator=(PolicyFile&&) = default;

  /// The state with this word that was kept here, or was in the file when it was opened; none when it is not there. It
  /// is what the job goes on with: the next one that is staged leaves it, and it is not pending any more.
  [[nodiscard]] std::optional<std::string> find(std::uint64_t word);

  /// Likewise the last such state that is not pending.
  [[nodiscard]] std::optional<Stored> newest();

  /// `word` is that of a step that may become done, and not 0. It leaves the state that was kept or found last. Errors:
  /// InsufficientMemory, LimitExceeded, InternalError; then nothing is staged.
  [[nodiscard]] Result<void> stage(std::uint64_t word, std::string_view state, Vote vote = Vote::Alone);

  /// The step of the state that was staged last is done. Only behind a `stage` that was no error.
  void keep();

  /// Ranks can know that the step of the state that was kept is done: it is not pending any more. Errors:
  /// InsufficientMemory, InternalError; then it stays pending in the file.
  [[nodiscard]] Result<void> settle();

  /// Forgets all states, at once. Errors: InternalError, and nothing is forgotten.
  [[nodiscard]] Result<void> wipe();

 private:
  PolicyFile(const std::string& directory, std::uint32_t uid, const std::string& job);

  [[nodiscard]] Result<void> open_directory();
  [[nodiscard]] Result<bool> open_locked();
  [[nodiscard]] Result<void> lock_file() const;
  [[nodiscard]] Result<void> check_trusted(const struct ::stat& opened) const;
  [[nodiscard]] Result<std::string> read_all() const;
  [[nodiscard]] Result<void> set_aside(const std::string& why) const;
  [[nodiscard]] Result<void> write_new_file(std::size_t slot_bytes, std::size_t slot);
  [[nodiscard]] Result<void> fill_new_file(int fd, std::size_t slot_bytes, std::size_t slot) const;
  [[nodiscard]] Error failed(const char* call, int error) const;
  [[nodiscard]] std::string new_name() const;
  [[nodiscard]] std::string found_in(std::size_t slot);
  [[nodiscard]] Result<void> settle(std::size_t slot);

  std::uint32_t uid_;
  std::string job_;
  std::string directory_;
  std::string name_;
  UniqueFd directory_fd_;
  UniqueFd fd_;
  std::size_t slot_bytes_ = 0;
  std::array<StateSlot, 2> slots_;
  StateSlot next_;              ///< staged; its place is the slot that is not current
  std::size_t current_ = 0;     ///< the slot that staging leaves
  std::uint64_t sequence_ = 0;  ///< of what was staged last
};

}  // namespace gradsync::engine
