#pragma once
// NCCL among the workers of a world: ids, communicators, operations with real sums, aborts and errors, on the virtual
// clock. As NCCL does it, an abort or an error leaves half of a result behind an event that says success, and a member
// that is gone is noticed late or not at all. Calls that NCCL forbids, and an id or an operation of two generations,
// are breaches.

#include "device/nccl/nccl_abi.hpp"
#include "sim/clock.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::sim {

class World;

using device::NcclResult;
using device::NcclUniqueId;

class NcclNetwork {
 public:
  using Process = std::uint64_t;  ///< a worker; no two have one number
  using Handle = std::uint64_t;   ///< a member of a communicator, likewise
  using Stream = std::uint64_t;

  /// The worker of a process.
  class Host {
   public:
    virtual ~Host() = default;
    virtual void on_nccl() = 0;                               ///< what it has under way has changed
    [[nodiscard]] virtual std::uint64_t epoch() const = 0;    ///< whose communicators it was told last
    [[nodiscard]] virtual std::uint64_t attempt() const = 0;  ///< the word of the one that it reduces
  };

  struct Launch {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::size_t elements = 0;  ///< that each member gets
    device::NcclType type = device::NcclType::Float32;
    bool scatters = false;
    Stream stream = 0;
    std::uint64_t attempt = 0;
  };

  explicit NcclNetwork(World& world) : world_(world) {}

  Process begin(std::size_t daemon, Host& host);

  /// Its memory is about to go. `silent`: its machine too, so nobody is told.
  void end(Process process, bool silent);

  [[nodiscard]] bool lives(Process process) const { return processes_.contains(process); }

  // what the functions of NCCL do
  [[nodiscard]] NcclUniqueId make_id(Process process);
  [[nodiscard]] NcclResult join(
      Process process, const NcclUniqueId& id, int ranks, int own, const char* name, Handle& made
  );
  [[nodiscard]] NcclResult state_of(Handle handle);
  [[nodiscard]] std::pair<int, int> ranks_and_own(Handle handle);
  [[nodiscard]] NcclResult launch(Handle handle, Launch launch);

  // and those of a GPU
  [[nodiscard]] Stream make_stream(Process process);
  void end_stream(Stream stream);
  void mark(Stream stream);
  [[nodiscard]] std::uint64_t passed(Stream stream);

  /// `done` when they write no more; never, where the abort hangs.
  void abort(Process process, const std::vector<Handle>& handles, std::function<void()> done);

  // faults
  enum class Next : std::uint8_t { Nothing, Late, Never, Error, Stalls, AbortHangs };

  /// What happens to the next member that joins, operation, or abort.
  void strike_next(Next what) { next_.insert(what); }

  void block(std::size_t one, std::size_t other, Duration time);
  void block_node(std::size_t node, Duration time);
  void heal();

  /// What must not be left in the end; empty: nothing is.
  [[nodiscard]] std::string left_over() const;

  [[nodiscard]] std::uint64_t built() const { return built_; }

  [[nodiscard]] std::uint64_t operations() const { return operations_; }

 private:
  using Bytes = std::vector<std::byte>;

  struct Worker {
    std::size_t daemon = 0;
    Host* host = nullptr;
  };

  struct Member {
    Process process = 0;
    std::uint64_t id = 0;
    std::size_t own = 0;
    NcclResult state = NcclResult::InProgress;
    bool aborting = false;
    std::uint64_t launched = 0;
    std::optional<Stream> stream = {};  ///< that has operations of it
    bool left = false;                  ///< it does nothing more there
  };

  struct Operation {
    std::vector<std::optional<Launch>> launches;  ///< by member
    std::size_t arrived = 0;
    bool stalls = false;
  };

  /// All that came of an id.
  struct Group {
    Process maker = 0;
    std::uint64_t epoch = 0;
    std::string name = {};
    std::vector<std::optional<Handle>> members = {};  ///< that came to it
    std::size_t came = 0;
    bool any_gone = false;
    std::map<std::uint64_t, Operation> operations = {};
  };

  struct Queued {
    Handle handle = 0;
    std::uint64_t number = 0;  ///< of the operation
  };

  struct Line {
    Process process = 0;
    std::deque<Queued> queued = {};
    std::uint64_t enqueued = 0;
    std::uint64_t done = 0;
    std::deque<std::uint64_t> marks = {};  ///< by how many operations are before each
    std::uint64_t passed = 0;
  };

  [[nodiscard]] Duration soon(std::int64_t least_us, std::int64_t most_us);
  [[nodiscard]] bool strikes(Next what);
  [[nodiscard]] Member* find(Handle handle);
  [[nodiscard]] Member* used(Handle handle, const char* what);
  void check_join(const Group& group, std::uint64_t id, Process process, int ranks, std::size_t own, const char* name);
  void come(Handle handle);
  void build(std::uint64_t id);
  void fail(Handle handle, NcclResult error);
  void leave(Handle handle, bool silent);
  void tell_others(const Group& group, bool silent);
  void arrive(const Queued& queued);
  void end_with_error(const Queued& queued);
  void sum(std::uint64_t id, std::uint64_t number);
  [[nodiscard]] bool may_meet(const Group& group) const;
  [[nodiscard]] bool parted(const Group& group) const;
  void check_alike(const Group& group, std::uint64_t number, const Operation& operation);
  [[nodiscard]] static Bytes sum_of(const Operation& operation);
  void finish(const Queued& queued, const Bytes& sum);
  void write_half(const Queued& queued);
  void leave_stream(const Member& member, Handle handle);
  void pop(Stream stream);
  void wake(Process process);

  World& world_;
  std::map<Process, Worker> processes_;
  std::map<Handle, Member> members_;
  std::map<std::uint64_t, Group> groups_;
  std::map<Stream, Line> lines_;
  std::map<std::pair<std::size_t, std::size_t>, TimePoint> blocked_;  ///< two daemons, the lower one first
  std::set<Next> next_;
  std::set<std::uint64_t> ids_;  ///< that were made
  std::uint64_t numbers_ = 0;
  std::uint64_t built_ = 0;
  std::uint64_t operations_ = 0;
};

}  // namespace gradsync::sim
