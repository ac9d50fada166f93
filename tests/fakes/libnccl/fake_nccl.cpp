// The functions of libnccl.so.2 over fake_communicator.hpp, and those of fake_nccl.hpp.

#include "fakes/libnccl/fake_nccl.hpp"

#include "fakes/libnccl/fake_communicator.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace gradsync::fakes;  // NOLINT(google-build-using-namespace): a file of functions in C
using gradsync::device::NcclCommunicator;
using gradsync::device::NcclConfig;
using gradsync::device::NcclOperation;
using gradsync::device::NcclResult;
using gradsync::device::NcclStream;
using gradsync::device::NcclType;
using gradsync::device::NcclUniqueId;

constexpr char kMagic[] = "fake:";

struct Library {
  std::mutex mutex;
  std::map<int, std::unique_ptr<FakeDevice>> devices;
  std::vector<std::unique_ptr<FakeCommunicator>> communicators;  ///< also those that have ended
  std::vector<FakeFault> faults;
  std::set<std::string> ids;
  std::vector<std::string> violations;
  std::string text;

  Library() { read(nullptr); }

  void end() {
    for (const auto& one : communicators) {
      one->stop_joining();
    }
    remove_ids();
  }

  void remove_ids() {
    for (const std::string& id : ids) {
      FakeWorld::remove(id);
    }
    ids.clear();
  }

  void read(const char* script) {
    const char* given = script == nullptr ? std::getenv("GRADSYNC_FAKE_NCCL") : script;
    faults = read_script(given == nullptr ? "" : given);
  }
};

/// It is never destroyed: a thread that hangs in a call, as scripted, may still read it while the process ends.
Library& library() {
  static Library* const one = [] {
    std::atexit([] { library().end(); });
    return new Library;
  }();
  return *one;
}

// In the memory that each thread begins with: TSan takes the end of what a library opened later adds to it for a race.
#define THREAD_LOCAL __attribute__((tls_model("initial-exec"))) thread_local
THREAD_LOCAL int current_device = 0;
THREAD_LOCAL int group_depth = 0;
THREAD_LOCAL std::vector<FakeCommunicator*> group_aborts;

NcclResult forbidden(const std::string& what) {
  const std::lock_guard lock(library().mutex);
  library().violations.push_back(what);
  return NcclResult::InvalidUsage;
}

/// Null where it is none, or has ended: that is a violation.
FakeCommunicator* find(const NcclCommunicator* given, const char* call) {
  {
    const std::lock_guard lock(library().mutex);
    const auto found = std::ranges::find_if(library().communicators, [&](const auto& one) {
      return static_cast<const void*>(one.get()) == given;
    });
    if (found != library().communicators.end() && !(*found)->ended()) {
      return found->get();
    }
  }
  (void)forbidden(std::string(call) + " of a communicator that has ended or never was");
  return nullptr;
}

FakeDevice& device(int number) {
  const std::lock_guard lock(library().mutex);
  std::unique_ptr<FakeDevice>& found = library().devices[number];
  if (found == nullptr) {
    found = std::make_unique<FakeDevice>();
  }
  return *found;
}

NcclResult launch(const char* call, FakeKind kind, NcclCommunicator* communicator, FakeOperation operation) {
  FakeCommunicator* const one = find(communicator, call);
  if (one == nullptr) {
    return NcclResult::InvalidArgument;
  }
  std::thread::id nobody{};
  FakeDevice& on = one->device();
  if (!on.launches.compare_exchange_strong(nobody, std::this_thread::get_id()) &&
      nobody != std::this_thread::get_id()) {
    return forbidden(std::string(call) + " on a second thread");
  }
  if (one->asked() == NcclResult::InProgress) {
    return forbidden(std::string(call) + " while the communicator is in progress");
  }
  operation.kind = kind;
  return one->launch(operation);
}

/// Freeing memory waits for everything that runs on the device, of whichever communicator.
void abort_all(const std::vector<FakeCommunicator*>& all) {
  for (FakeCommunicator* one : all) {
    if (one->device().launches == std::this_thread::get_id()) {
      (void)forbidden("ncclCommAbort on the thread that launches");
    }
    one->raise_abort();
  }
  for (FakeCommunicator* one : all) {
    if (one->fault("abort_hangs") != nullptr) {
      hang(nullptr);
      return;
    }
    while (one->device().running > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    one->finish_abort();
  }
}

}  // namespace

EXPORT NcclResult ncclGetVersion(int* version) {
  const char* given = std::getenv("GRADSYNC_FAKE_NCCL_VERSION");
  *version = given == nullptr ? 22809 : std::atoi(given);
  return NcclResult::Success;
}

EXPORT NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  const std::string name = FakeWorld::create();
  const std::string text = kMagic + name;
  *id = {};
  std::memcpy(id->bytes.data(), text.data(), text.size());
  const std::lock_guard lock(library().mutex);
  library().ids.insert(name);
  return NcclResult::Success;
}

EXPORT NcclResult
ncclCommInitRankConfig(NcclCommunicator** communicator, int ranks, NcclUniqueId id, int rank, NcclConfig* config) {
  *communicator = nullptr;
  const std::string text(id.bytes.data(), ::strnlen(id.bytes.data(), id.bytes.size()));
  const bool known = config->size == sizeof(NcclConfig) && config->magic == NcclConfig().magic;
  if (!known || ranks < 1 || ranks > static_cast<int>(kMostRanks) || rank < 0 || rank >= ranks ||
      !text.starts_with(kMagic)) {
    return NcclResult::InvalidArgument;
  }
  if (config->blocking != 0) {
    return forbidden("a communicator that blocks");
  }
  if (ranks == 1) {
    return forbidden("a communicator of one rank");
  }
  const std::string name = config->communicator_name == nullptr ? "" : config->communicator_name;
  FakeDevice& on = device(current_device);
  FakeCommunicator* made = nullptr;
  std::vector<FakeFault> faults;
  {
    const std::lock_guard lock(library().mutex);
    made = library()
               .communicators
               .emplace_back(std::make_unique<FakeCommunicator>(
                   text.substr(sizeof(kMagic) - 1), name, ranks, rank, current_device, on
               ))
               .get();
    faults = library().faults;
  }
  *communicator = reinterpret_cast<NcclCommunicator*>(made);
  const NcclResult begun = made->begin(faults);
  if (begun == NcclResult::InvalidUsage || begun == NcclResult::SystemError) {
    (void)forbidden("ncclCommInitRankConfig: " + made->last_error());
  }
  return begun;
}

EXPORT NcclResult ncclCommGetAsyncError(NcclCommunicator* communicator, NcclResult* error) {
  FakeCommunicator* const one = find(communicator, "ncclCommGetAsyncError");
  if (one == nullptr) {
    return NcclResult::InvalidArgument;
  }
  *error = one->asked();
  return NcclResult::Success;
}

EXPORT NcclResult ncclCommCount(const NcclCommunicator* communicator, int* ranks) {
  const FakeCommunicator* const one = find(communicator, "ncclCommCount");
  *ranks = one == nullptr ? 0 : one->ranks();
  return one == nullptr ? NcclResult::InvalidArgument : NcclResult::Success;
}

EXPORT NcclResult ncclCommUserRank(const NcclCommunicator* communicator, int* rank) {
  const FakeCommunicator* const one = find(communicator, "ncclCommUserRank");
  *rank = one == nullptr ? -1 : one->rank();
  return one == nullptr ? NcclResult::InvalidArgument : NcclResult::Success;
}

EXPORT NcclResult ncclCommAbort(NcclCommunicator* communicator) {
  FakeCommunicator* const one = find(communicator, "ncclCommAbort");
  if (one == nullptr) {
    return NcclResult::InvalidArgument;
  }
  if (group_depth > 0) {
    group_aborts.push_back(one);
  } else {
    abort_all({one});
  }
  return NcclResult::Success;
}

EXPORT NcclResult ncclGroupStart() {
  ++group_depth;
  return NcclResult::Success;
}

EXPORT NcclResult ncclGroupEnd() {
  if (group_depth == 0) {
    return forbidden("ncclGroupEnd without ncclGroupStart");
  }
  if (--group_depth == 0) {
    abort_all(std::exchange(group_aborts, {}));
  }
  return NcclResult::Success;
}

EXPORT const char* ncclGetErrorString(NcclResult result) {
  constexpr const char* kWords[] = {
      "no error",
      "unhandled cuda error",
      "unhandled system error",
      "internal error",
      "invalid argument",
      "invalid usage",
      "remote process exited or there was a network error",
      "NCCL operation in progress"};
  const auto number = static_cast<std::size_t>(result);
  return number < std::size(kWords) ? kWords[number] : "unknown result code";
}

EXPORT const char* ncclGetLastError(NcclCommunicator* communicator) {
  thread_local std::string words;
  words.clear();
  const std::lock_guard lock(library().mutex);
  for (const auto& one : library().communicators) {
    if (static_cast<const void*>(one.get()) == communicator) {
      words = one->last_error();
    }
  }
  return words.c_str();
}

namespace {

FakeOperation operation_of(const void* from, void* to, std::size_t elements, NcclType type, NcclStream* stream) {
  FakeOperation operation;
  operation.from = static_cast<const std::byte*>(from);
  operation.to = static_cast<std::byte*>(to);
  operation.elements = elements;
  operation.type = type;
  operation.stream = reinterpret_cast<FakeStream*>(stream);
  return operation;
}

}  // namespace

EXPORT NcclResult ncclAllReduce(
    const void* from,
    void* to,
    std::size_t elements,
    NcclType type,
    NcclOperation operation,
    NcclCommunicator* communicator,
    NcclStream* stream
) {
  if (operation != NcclOperation::Sum) {
    return forbidden("an operation that is no sum");
  }
  return launch("ncclAllReduce", FakeKind::AllReduce, communicator, operation_of(from, to, elements, type, stream));
}

EXPORT NcclResult ncclReduceScatter(
    const void* from,
    void* to,
    std::size_t elements,
    NcclType type,
    NcclOperation operation,
    NcclCommunicator* communicator,
    NcclStream* stream
) {
  if (operation != NcclOperation::Sum) {
    return forbidden("an operation that is no sum");
  }
  return launch(
      "ncclReduceScatter", FakeKind::ReduceScatter, communicator, operation_of(from, to, elements, type, stream)
  );
}

EXPORT NcclResult ncclAllGather(
    const void* from, void* to, std::size_t elements, NcclType type, NcclCommunicator* communicator, NcclStream* stream
) {
  return launch("ncclAllGather", FakeKind::AllGather, communicator, operation_of(from, to, elements, type, stream));
}

EXPORT void gradsync_fake_nccl_script(const char* script) {
  const std::lock_guard lock(library().mutex);
  library().read(script);
}

EXPORT void gradsync_fake_nccl_device(int number) { current_device = number; }

EXPORT const char* gradsync_fake_nccl_violations() {
  const std::lock_guard lock(library().mutex);
  library().text.clear();
  for (const std::string& line : library().violations) {
    library().text += line + "\n";
  }
  return library().text.c_str();
}

EXPORT int gradsync_fake_nccl_open_ids() {
  const std::lock_guard lock(library().mutex);
  return static_cast<int>(std::ranges::count_if(library().ids, [](const std::string& id) {
    return std::ranges::none_of(library().communicators, [&](const auto& one) {
      return one->world_name() == id && one->complete();
    });
  }));
}

EXPORT int gradsync_fake_nccl_open() {
  const std::lock_guard lock(library().mutex);
  return static_cast<int>(std::ranges::count_if(library().communicators, [](const auto& one) {
    return !one->ended() && !one->forgotten();
  }));
}

EXPORT void gradsync_fake_nccl_reset() {
  end_hangs();
  const std::lock_guard lock(library().mutex);
  library().violations.clear();
  library().faults.clear();
  library().remove_ids();
  for (const auto& [number, one] : library().devices) {
    one->launches = std::thread::id();
  }
}
