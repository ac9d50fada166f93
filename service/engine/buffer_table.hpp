#pragma once
// Arenas and the one-use tokens by which their descriptors, and those of step records, are fetched. Thread: io.
//
// Invariant: a buffer in use by a loaded plan is never unmapped; its release waits. Every buffer that goes has its
// pages punched out, so that memory is free even where a forked child of the trainer still holds a descriptor.

#include "engine/lanes.hpp"
#include "engine/step/step_record.hpp"
#include "engine/types.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace gradsync::engine {

class BufferTable {
 public:
  BufferTable(const EngineOptions& options, const Lanes& lanes) : options_(options), lanes_(lanes) {}

  /// Memory for `lane` to work on.
  [[nodiscard]] Result<BufferGrant> allocate(
      SessionId session,
      std::uint32_t uid,
      std::int64_t pid,
      std::uint64_t size_bytes,
      device::LaneId lane,
      TimePoint now
  );
  /// A place for memory that a daemon before this one made; `exchange` fills it.
  [[nodiscard]] Result<BufferGrant> adopt(
      SessionId session, std::uint32_t uid, std::int64_t pid, std::uint64_t size_bytes, TimePoint now
  );
  /// A token by which a rank fetches the record of its job, as long as the job has it.
  [[nodiscard]] RecordGrant grant_record(
      const std::shared_ptr<const StepRecord>& record,
      std::int64_t rank,
      std::uint32_t uid,
      std::int64_t pid,
      TimePoint now
  );
  /// The token is that of an adoption, and the caller's.
  [[nodiscard]] bool awaits_fd(const std::string& token, std::uint32_t uid, std::int64_t pid, TimePoint now) const;
  [[nodiscard]] Result<TakenFd> exchange(
      const std::string& token, std::uint32_t uid, std::int64_t pid, UniqueFd given, TimePoint now
  );

  /// Releases on request of its session: now, or when its plan is unloaded.
  [[nodiscard]] Result<void> release(SessionId session, std::uint64_t buffer);
  /// The session is gone: every buffer of it goes as soon as nothing uses it.
  void release_all(SessionId session);
  /// A resumed session keeps its buffers under its new id.
  void rename_session(SessionId from, SessionId to);

  /// Size of a session's buffer, or UnknownBuffer.
  [[nodiscard]] Result<std::uint64_t> size_of(SessionId session, std::uint64_t buffer) const;
  /// The lane that works on it; the host lane where it was released.
  [[nodiscard]] device::LaneId lane_of(std::uint64_t buffer) const;
  /// Has its lane map it (once) and marks it used by one more plan.
  void use(std::uint64_t buffer);
  /// One plan less uses it.
  void unuse(std::uint64_t buffer);
  /// Its lane could not map it: the next plan has it try again.
  void on_map_failed(device::LaneId lane, std::uint64_t buffer);

  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }

  [[nodiscard]] std::uint64_t bytes_of(SessionId session) const;

 private:
  struct Buffer {
    SessionId session = 0;
    device::LaneId lane = device::kHostLane;
    UniqueFd fd;  ///< none: to be adopted, and its descriptor has not come
    std::uint64_t size_bytes = 0;
    int users = 0;
    bool map_submitted = false;
    bool released = false;
  };

  struct Token {
    std::uint64_t buffer = 0;                ///< 0: of a record
    std::weak_ptr<const StepRecord> record;  ///< held weakly, because the job may end first
    std::int64_t rank = 0;                   ///< the rank that the record is for
    std::uint32_t uid = 0;
    std::int64_t pid = 0;
    TimePoint expires;  ///< not of a record: its token lives as long as it does

    /// pid 0: of a namespace that is not seen from here
    [[nodiscard]] bool belongs_to(std::uint32_t its_uid, std::int64_t its_pid) const {
      return uid == its_uid && (pid == 0 || its_pid == 0 || pid == its_pid);
    }
  };

  [[nodiscard]] Result<void> check_room(SessionId session, std::uint64_t size_bytes) const;
  [[nodiscard]] BufferGrant grant(
      SessionId session, std::uint32_t uid, std::int64_t pid, UniqueFd fd, std::uint64_t size_bytes, TimePoint now
  );
  [[nodiscard]] Result<void> take_in(std::uint64_t buffer, UniqueFd given);
  void drop_if_unused(std::map<std::uint64_t, Buffer>::iterator it);
  void erase(std::map<std::uint64_t, Buffer>::iterator it);
  std::string add_token(Token token, TimePoint now);
  void forget_expired_tokens(TimePoint now);

  const EngineOptions& options_;
  const Lanes& lanes_;
  std::map<std::uint64_t, Buffer> buffers_;
  std::map<std::string, Token> tokens_;
  std::uint64_t next_buffer_ = 1;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace gradsync::engine
