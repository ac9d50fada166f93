#pragma once
// One member of a communicator of the fake NCCL.

#include "device/nccl/nccl_abi.hpp"
#include "fakes/libnccl/fake_script.hpp"
#include "fakes/libnccl/fake_stream.hpp"
#include "fakes/libnccl/fake_world.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace gradsync::fakes {

/// Hangs until `aborted` is raised, or the tests reset everything, which raises the generation.
void hang(const std::atomic<bool>* aborted);
void end_hangs();
[[nodiscard]] int hang_generation();

/// What is known of one device of this process.
struct FakeDevice {
  std::atomic<int> running{0};  ///< operations on its streams
  std::atomic<std::thread::id> launches{};
};

enum class FakeKind : std::uint32_t { AllReduce, ReduceScatter, AllGather };

struct FakeOperation {
  FakeKind kind = FakeKind::AllReduce;
  device::NcclType type = device::NcclType::Float32;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t elements = 0;
  FakeStream* stream = nullptr;
};

class FakeCommunicator {
 public:
  FakeCommunicator(std::string world, std::string name, int ranks, int rank, int number, FakeDevice& device);
  ~FakeCommunicator();
  FakeCommunicator(const FakeCommunicator&) = delete;
  FakeCommunicator& operator=(const FakeCommunicator&) = delete;

  /// Begins to wait for the other members, on a thread of its own.
  device::NcclResult begin(const std::vector<FakeFault>& faults);

  device::NcclResult launch(const FakeOperation& operation);

  /// What ncclCommGetAsyncError says; a launch that is in progress goes on with it.
  device::NcclResult asked();

  /// It is from before a reset.
  [[nodiscard]] bool forgotten() const { return generation_ != hang_generation(); }

  /// Nothing of it goes on.
  [[nodiscard]] bool stopped() const { return aborted_ || forgotten(); }

  void raise_abort() { aborted_ = true; }

  void stop_joining();

  void finish_abort();  ///< when nothing runs on the device any more

  [[nodiscard]] const FakeFault* fault(const char* kind, std::optional<long> operation = std::nullopt) const;
  [[nodiscard]] std::string last_error() const;

  [[nodiscard]] int ranks() const { return ranks_; }

  [[nodiscard]] int rank() const { return rank_; }

  [[nodiscard]] int number() const { return number_; }

  [[nodiscard]] FakeDevice& device() const { return device_; }

  [[nodiscard]] bool ended() const { return ended_; }

  [[nodiscard]] const std::string& world_name() const { return world_name_; }

  [[nodiscard]] bool complete() const { return complete_; }

 private:
  struct Task;

  void join_others(bool comes);
  void put_on_stream(const FakeOperation& operation);
  void run(const Task& task);
  bool exchange(const Task& task, std::size_t pieces);
  bool all_begin(const Task& task);
  void fail(device::NcclResult result, std::string words);
  bool wait_for(const std::function<bool(const FakeSeat&)>& ready);
  void write_outputs(const FakeOperation& operation, std::size_t first, std::size_t count, std::uint64_t piece);

  [[nodiscard]] FakeSeat& own() const { return world_->memory().seats[rank_]; }

  std::string world_name_;
  std::string name_;
  int ranks_;
  int rank_;
  int number_;  ///< of the device
  int generation_ = hang_generation();
  FakeDevice& device_;
  std::vector<FakeFault> faults_;
  std::unique_ptr<FakeWorld> world_;
  std::thread joining_;
  std::atomic<bool> complete_{false};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> ended_{false};
  std::atomic<device::NcclResult> state_{device::NcclResult::InProgress};
  std::atomic<int> error_polls_{0};  ///< until an error is said; 0: none is due
  std::atomic<device::NcclResult> error_code_{device::NcclResult::RemoteError};
  std::optional<FakeOperation> launching_;
  int launching_polls_ = 0;
  long operations_ = 0;
  std::uint64_t pieces_ = 0;
  mutable std::mutex mutex_;
  std::string last_error_;
};

}  // namespace gradsync::fakes
