#include "sim/collectives/stepped_device.hpp"

#include "device/nccl/abort_thread.hpp"
#include "device/nccl/nccl_library.hpp"
#include "sim/world.hpp"

#include <map>
#include <string_view>
#include <utility>

namespace gradsync::sim {

namespace {

using device::CommunicatorSlot;
using device::NcclCommunicator;
using device::NcclStream;
using device::NcclType;

struct Caller {
  NcclNetwork* network = nullptr;
  NcclNetwork::Process process = 0;
};

thread_local Caller caller;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): see Calling

/// Handles are numbers, and nobody looks behind them.
NcclNetwork::Handle handle_of(const NcclCommunicator* communicator) {
  return reinterpret_cast<NcclNetwork::Handle>(communicator);
}

NcclResult get_version(int* version) {
  *version = device::NcclLibrary::kLeastVersion;
  return NcclResult::Success;
}

const char* error_string(NcclResult /*result*/) { return "simulated error"; }

const char* last_error(NcclCommunicator* /*communicator*/) { return ""; }

NcclResult get_unique_id(NcclUniqueId* id) {
  *id = caller.network->make_id(caller.process);
  return NcclResult::Success;
}

NcclResult init_rank(NcclCommunicator** made, int ranks, NcclUniqueId id, int own, device::NcclConfig* config) {
  NcclNetwork::Handle handle = 0;
  const NcclResult result = caller.network->join(caller.process, id, ranks, own, config->communicator_name, handle);
  *made = reinterpret_cast<NcclCommunicator*>(handle);
  return result;
}

/// Aborts are in groups, on a thread of their own: not here.
NcclResult no_abort(NcclCommunicator* /*communicator*/) { return NcclResult::InternalError; }

NcclResult no_group() { return NcclResult::InternalError; }

NcclResult get_async_error(NcclCommunicator* communicator, NcclResult* error) {
  *error = caller.network->state_of(handle_of(communicator));
  return NcclResult::Success;
}

NcclResult count(const NcclCommunicator* communicator, int* ranks) {
  *ranks = caller.network->ranks_and_own(handle_of(communicator)).first;
  return NcclResult::Success;
}

NcclResult user_rank(const NcclCommunicator* communicator, int* own) {
  *own = caller.network->ranks_and_own(handle_of(communicator)).second;
  return NcclResult::Success;
}

NcclResult launch(
    const void* from, void* to, std::size_t elements, NcclType type, bool scatters, NcclCommunicator* of, NcclStream* on
) {
  const auto stream = reinterpret_cast<NcclNetwork::Stream>(on);
  return caller.network->launch(
      handle_of(of),
      {static_cast<const std::byte*>(from), static_cast<std::byte*>(to), elements, type, scatters, stream}
  );
}

NcclResult all_reduce(
    const void* from,
    void* to,
    std::size_t elements,
    NcclType type,
    device::NcclOperation /*sum*/,
    NcclCommunicator* of,
    NcclStream* on
) {
  return launch(from, to, elements, type, false, of, on);
}

NcclResult reduce_scatter(
    const void* from,
    void* to,
    std::size_t elements,
    NcclType type,
    device::NcclOperation /*sum*/,
    NcclCommunicator* of,
    NcclStream* on
) {
  return launch(from, to, elements, type, true, of, on);
}

/// Nothing is gathered: results are written by those that have them.
NcclResult all_gather(
    const void* /*from*/,
    void* /*to*/,
    std::size_t /*elements*/,
    NcclType /*type*/,
    NcclCommunicator* /*of*/,
    NcclStream* /*on*/
) {
  return NcclResult::InvalidUsage;
}

void* function(std::string_view name) {
  const std::map<std::string_view, void*> all = {
      {"ncclGetVersion", reinterpret_cast<void*>(&get_version)},
      {"ncclGetErrorString", reinterpret_cast<void*>(&error_string)},
      {"ncclGetLastError", reinterpret_cast<void*>(&last_error)},
      {"ncclGetUniqueId", reinterpret_cast<void*>(&get_unique_id)},
      {"ncclCommInitRankConfig", reinterpret_cast<void*>(&init_rank)},
      {"ncclCommAbort", reinterpret_cast<void*>(&no_abort)},
      {"ncclCommGetAsyncError", reinterpret_cast<void*>(&get_async_error)},
      {"ncclCommCount", reinterpret_cast<void*>(&count)},
      {"ncclCommUserRank", reinterpret_cast<void*>(&user_rank)},
      {"ncclAllReduce", reinterpret_cast<void*>(&all_reduce)},
      {"ncclReduceScatter", reinterpret_cast<void*>(&reduce_scatter)},
      {"ncclAllGather", reinterpret_cast<void*>(&all_gather)},
      {"ncclGroupStart", reinterpret_cast<void*>(&no_group)},
      {"ncclGroupEnd", reinterpret_cast<void*>(&no_group)}};
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

class SteppedStream final : public device::CollectiveStream {
 public:
  SteppedStream(NcclNetwork& network, NcclNetwork::Process process)
      : network_(network), number_(network.make_stream(process)) {}

  ~SteppedStream() override { network_.end_stream(number_); }

  SteppedStream(const SteppedStream&) = delete;
  SteppedStream& operator=(const SteppedStream&) = delete;

  [[nodiscard]] NcclStream* handle() override { return reinterpret_cast<NcclStream*>(number_); }

  void mark() override { network_.mark(number_); }

  [[nodiscard]] std::uint64_t passed() override { return network_.passed(number_); }

 private:
  NcclNetwork& network_;
  NcclNetwork::Stream number_;
};

class SteppedAborts final : public device::GroupAborts {
 public:
  SteppedAborts(NcclNetwork& network, NcclNetwork::Process process) : network_(network), process_(process) {}

  void abort(std::vector<Member> group) override {
    std::vector<NcclNetwork::Handle> handles;
    std::vector<CommunicatorSlot> slots;
    for (const Member& member : group) {
      handles.push_back(handle_of(member.communicator));
      slots.push_back(member.slot);
    }
    network_.abort(process_, handles, [done = done_, slots] { done->push_back(slots); });
  }

  [[nodiscard]] std::vector<std::vector<CommunicatorSlot>> take_done() override { return std::exchange(*done_, {}); }

 private:
  using Done = std::vector<std::vector<CommunicatorSlot>>;

  NcclNetwork& network_;
  NcclNetwork::Process process_;
  std::shared_ptr<Done> done_ = std::make_shared<Done>();
};

}  // namespace

Calling::Calling(NcclNetwork& network, NcclNetwork::Process process) { caller = {&network, process}; }

Calling::~Calling() { caller = {}; }

std::unique_ptr<device::CollectiveStream> SteppedDevice::make_stream() {
  return std::make_unique<SteppedStream>(world_.nccl(), process_);
}

std::byte* SteppedDevice::allocate(std::size_t bytes) {
  return memory_.emplace_back(std::make_unique<std::byte[]>(bytes)).get();
}

std::unique_ptr<device::NcclLibrary> SteppedDevice::open(const std::string& path) {
  return std::make_unique<device::NcclLibrary>(path, [](const char* name) { return function(name); });
}

std::unique_ptr<device::GroupAborts> SteppedDevice::make_aborts(
    const device::NcclLibrary& /*library*/, std::function<void()> /*wake*/
) {
  return std::make_unique<SteppedAborts>(world_.nccl(), process_);
}

TimePoint SteppedDevice::now() const { return world_.clock().now(); }

}  // namespace gradsync::sim
