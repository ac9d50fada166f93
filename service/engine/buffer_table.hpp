#pragma once
// Arenas and the one-use tokens by which their descriptors, and those of step records, are fetched. Thread: io.
//
// Invariants: a buffer in use by a loaded plan is never unmapped; its release waits. Every buffer that goes has its
// pages punched out, so that memory is free even where a forked child of the trainer still holds a descriptor. A call
// takes no longer for the buffers and tokens that others hold.

#include "base/fair_budget.hpp"
#include "engine/lanes.hpp"
#include "engine/step/step_record.hpp"
#include "engine/types.hpp"

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace gradsync::engine {

class BufferTable {
 public:
  BufferTable(const EngineOptions& options, const Lanes& lanes);

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
  /// Why this cannot be registered, before any worker is asked.
  [[nodiscard]] Result<void> check_exported(SessionId session, const ExportedBuffer& exported) const;
  /// Has `lane` map it, and answers when that is done. It was checked.
  void register_exported(
      SessionId session,
      const Holder& holder,
      ExportedBuffer exported,
      device::LaneId lane,
      Reply<RegisteredBuffer> reply
  );

  /// A number that no buffer has or will have, for what a lane reports of in the same way.
  [[nodiscard]] std::uint64_t spare_number() { return next_buffer_++; }

  /// Registrations that wait are not answered any more.
  void forget_waiting();
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
  /// The session that it was given to, which may be gone; 0: there is no such buffer.
  [[nodiscard]] SessionId session_of(std::uint64_t buffer) const;
  /// Marks it used by one more plan.
  void use(std::uint64_t buffer);
  /// Has the lane map it, once: its own, that of another GPU, which reaches it, or one with NCCL for memory of CPUs.
  void map_on(std::uint64_t buffer, device::LaneId lane);
  /// One plan less uses it.
  void unuse(std::uint64_t buffer);
  void on_mapped(device::LaneId lane, std::uint64_t buffer);
  /// Its lane could not map it. What was exported is refused, and an arena is tried again by the next plan.
  void on_map_failed(device::LaneId lane, const device::Failed& report);
  /// Exported buffers of a lane that was lost can only be released; of an arena another one can be told.
  void lose_lane(device::LaneId lane);

  /// Whether this lane, in a worker, has any buffer.
  [[nodiscard]] bool on_lane(device::LaneId lane) const { return mapped_on_.contains(lane); }

  [[nodiscard]] std::uint64_t total_bytes() const { return bytes_.held(); }

  [[nodiscard]] std::uint64_t bytes_of(SessionId session) const;

 private:
  /// What identifies memory, whatever descriptor it is known by: device and inode.
  using Memory = std::pair<std::uint64_t, std::uint64_t>;

  /// An allocation of a session: its generation and address, and the lane that maps it.
  using AllocationKey = std::tuple<std::uint64_t, std::uint64_t, device::LaneId>;

  /// A buffer in memory of its owner's.
  struct Exported {
    AllocationKey key;
    std::uint64_t offset = 0;
    Reply<RegisteredBuffer> waiting;  ///< until it is mapped or refused
    bool lost = false;                ///< with its worker
  };

  struct Buffer {
    SessionId session = 0;
    Holder holder;
    device::LaneId lane = device::kHostLane;
    UniqueFd fd;  ///< none: to be adopted, and its descriptor has not come
    std::uint64_t size_bytes = 0;
    std::uint64_t populated_bytes = 0;  ///< when it was looked at last
    Memory memory;
    std::string token;  ///< empty: it was used
    int users = 0;
    bool map_submitted = false;
    std::set<device::LaneId> elsewhere = {};  ///< other lanes that have mapped it too, each in a worker
    bool released = false;
    std::optional<Exported> exported;

    /// It has memory that a plan can use.
    [[nodiscard]] bool usable() const {
      return !released && (exported ? !exported->lost && exported->waiting.empty() : fd.valid());
    }
  };

  /// Exported memory of a session that buffers lie in.
  struct Allocation {
    std::uint64_t number = 0;  ///< that its lane knows it by
    std::string handle;
    std::uint64_t bytes = 0;
    int buffers = 0;
  };

  using Buffers = std::map<std::uint64_t, Buffer>;

  struct OfSession {
    std::set<std::uint64_t> buffers;  ///< those that are released and still used included
    std::int64_t held = 0;            ///< those that are not released
    std::uint64_t bytes = 0;          ///< of the latter
    std::uint64_t generation = 0;     ///< the highest one so far of exported memory
    std::map<AllocationKey, Allocation> allocations = {};
    bool gone = false;  ///< it is forgotten with its last buffer
  };

  struct Token {
    std::uint64_t buffer = 0;                ///< 0: of a record
    std::weak_ptr<const StepRecord> record;  ///< held weakly, because the job may end first
    const StepRecord* record_key = nullptr;  ///< with the rank, its key in record_tokens_
    std::int64_t rank = 0;                   ///< the rank that the record is for
    Holder holder;
    TimePoint expires;  ///< not of a record: its token lives as long as it does

    /// pid 0: of a namespace that is not seen from here
    [[nodiscard]] bool belongs_to(std::uint32_t its_uid, std::int64_t its_pid) const {
      return holder.uid == its_uid && (holder.pid == 0 || its_pid == 0 || holder.pid == its_pid);
    }
  };

  using Tokens = std::map<std::string, Token>;

  [[nodiscard]] Result<void> check_count(SessionId session) const;
  [[nodiscard]] Result<void> check_request(SessionId session, std::uint64_t size_bytes) const;
  [[nodiscard]] Result<void> check_share(const Holder& holder, std::uint64_t size_bytes) const;
  [[nodiscard]] Result<void> check_memory(std::uint64_t size_bytes, std::uint64_t populated_bytes);
  void look_at_some();
  [[nodiscard]] BufferGrant grant(SessionId session, const Holder& holder, std::uint64_t size_bytes, TimePoint now);
  void fill(Buffers::iterator it, UniqueFd fd);
  [[nodiscard]] Result<void> take_in(Buffers::iterator it, UniqueFd given);
  Buffer& add(SessionId session, const Holder& holder, std::uint64_t size_bytes);
  void forget_if_gone(SessionId session);
  [[nodiscard]] static Reply<RegisteredBuffer> take_waiting(Exported& exported);
  [[nodiscard]] static UniqueFd duplicate(const UniqueFd& fd);
  void leave_lane(device::LaneId lane);
  void leave_lost_lanes(Buffer& buffer);
  void map_elsewhere(std::uint64_t id, Buffer& buffer, device::LaneId lane);
  void unmap_elsewhere(std::uint64_t id, Buffer& buffer);
  void close_exported(std::uint64_t id, Buffer& buffer);
  void set_released(Buffer& buffer);
  void drop_if_unused(Buffers::iterator it);
  void erase(Buffers::iterator it);
  std::string add_token(Token token);
  void erase_token(Tokens::iterator it);
  void forget_expired_tokens(TimePoint now);
  void forget_old_records();

  const EngineOptions& options_;
  const Lanes& lanes_;
  Buffers buffers_;
  std::unordered_map<SessionId, OfSession> sessions_;
  std::map<Memory, std::uint64_t> of_memory_;  ///< the buffer that it is
  FairBudget bytes_;
  FairBudget waiting_tokens_;                        ///< of buffers; a record has one for each rank
  device::ArenaBytes arenas_;                        ///< of buffers whose descriptor is there
  std::map<device::LaneId, std::size_t> mapped_on_;  ///< buffers that a lane in a worker has mapped, or is to
  std::uint64_t looked_at_ = 0;
  Tokens tokens_;
  std::deque<std::pair<TimePoint, std::uint64_t>> expiries_;  ///< of the tokens of buffers, used ones included
  std::map<std::pair<const StepRecord*, std::int64_t>, std::string> record_tokens_;
  std::size_t look_for_old_at_ = 1024;  ///< tokens of records
  std::uint64_t next_buffer_ = 1;
  std::uint64_t next_allocation_ = 1;
};

}  // namespace gradsync::engine
