#include "fakes/libnccl/fake_communicator.hpp"

#include "arithmetic/half.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace gradsync::fakes {

using device::NcclResult;
using device::NcclType;

namespace {

constexpr std::chrono::microseconds kPause{50};

std::atomic<int> generations{0};

std::size_t size_of(NcclType type) { return type == NcclType::Float64 ? 8 : type == NcclType::Float32 ? 4 : 2; }

double load(NcclType type, const std::byte* from) {
  if (type == NcclType::Float64) {
    double value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  if (type == NcclType::Float32) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, from, sizeof(half));
  return type == NcclType::BFloat16 ? arithmetic::bfloat16_to_float(half) : arithmetic::float16_to_float(half);
}

void store(NcclType type, double value, std::byte* to) {
  if (type == NcclType::Float64) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const auto single = static_cast<float>(value);
  if (type == NcclType::Float32) {
    std::memcpy(to, &single, sizeof(single));
    return;
  }
  const std::uint16_t half =
      type == NcclType::BFloat16 ? arithmetic::float_to_bfloat16(single) : arithmetic::float_to_float16(single);
  std::memcpy(to, &half, sizeof(half));
}

/// Adds in the type of the elements, as a ring does: what one hop brings is rounded before the next.
double add(NcclType type, double a, double b) {
  if (type == NcclType::Float64) {
    return a + b;
  }
  std::byte rounded[4];
  store(type, static_cast<float>(a) + static_cast<float>(b), rounded);
  return load(type, rounded);
}

}  // namespace

int hang_generation() { return generations; }

void hang(const std::atomic<bool>* aborted) {
  const int generation = generations;
  while (generation == generations && (aborted == nullptr || !*aborted)) {
    std::this_thread::sleep_for(kPause);
  }
}

void end_hangs() { ++generations; }

struct FakeCommunicator::Task {
  FakeCommunicator* one = nullptr;
  FakeOperation operation;
  long number = 0;
};

FakeCommunicator::FakeCommunicator(
    std::string world, std::string name, int ranks, int rank, int number, FakeDevice& device
)
    : world_name_(std::move(world)),
      name_(std::move(name)),
      ranks_(ranks),
      rank_(rank),
      number_(number),
      device_(device) {}

FakeCommunicator::~FakeCommunicator() { stop_joining(); }

void FakeCommunicator::stop_joining() {
  raise_abort();
  if (joining_.joinable()) {
    joining_.join();
  }
}

const FakeFault* FakeCommunicator::fault(const char* kind, std::optional<long> operation) const {
  const auto found = std::ranges::find_if(faults_, [&](const FakeFault& fault) {
    return fault.kind == kind && fault.rank.value_or(rank_) == rank_ &&
           (!fault.operation || fault.operation == operation) && name_.find(fault.of) != std::string::npos;
  });
  return found == faults_.end() ? nullptr : &*found;
}

NcclResult FakeCommunicator::begin(const std::vector<FakeFault>& faults) {
  faults_ = faults;
  if (const FakeFault* refused = fault("fails_to_join")) {
    fail(static_cast<NcclResult>(refused->code), "told to fail");
    return static_cast<NcclResult>(refused->code);
  }
  const bool comes = fault("never_joins") == nullptr;
  try {
    world_ = std::make_unique<FakeWorld>(world_name_);
  } catch (const std::exception& error) {
    fail(NcclResult::SystemError, error.what());
    return NcclResult::SystemError;
  }
  if (const std::string refusal = comes ? world_->join(ranks_, rank_) : ""; !refusal.empty()) {
    fail(NcclResult::InvalidUsage, refusal);
    return NcclResult::InvalidUsage;
  }
  joining_ = std::thread([this, comes] { join_others(comes); });
  return NcclResult::InProgress;
}

void FakeCommunicator::join_others(bool comes) {
  const auto here = static_cast<std::uint32_t>(ranks_);
  while (!comes || world_->memory().joined < here) {
    if (stopped()) {
      return;
    }
    if (const int gone = world_->gone(); gone >= 0 && gone != rank_) {
      fail(NcclResult::RemoteError, "rank " + std::to_string(gone) + " closed its connection");
      return;
    }
    std::this_thread::sleep_for(kPause);
  }
  complete_ = true;
  FakeWorld::remove(world_name_);
  NcclResult joining = NcclResult::InProgress;
  state_.compare_exchange_strong(joining, NcclResult::Success);
}

void FakeCommunicator::fail(NcclResult result, std::string words) {
  {
    const std::lock_guard lock(mutex_);
    last_error_ = std::move(words);
  }
  state_ = result;
}

std::string FakeCommunicator::last_error() const {
  const std::lock_guard lock(mutex_);
  return last_error_;
}

NcclResult FakeCommunicator::asked() {
  if (launching_ && --launching_polls_ <= 0) {
    put_on_stream(*launching_);
    launching_.reset();
  }
  if (error_polls_ > 0 && --error_polls_ == 0) {
    fail(error_code_, "told to fail");
  }
  const NcclResult state = state_;
  return launching_ && state == NcclResult::Success ? NcclResult::InProgress : state;
}

NcclResult FakeCommunicator::launch(const FakeOperation& operation) {
  if (const NcclResult state = state_; state != NcclResult::Success) {
    return state;
  }
  if (const FakeFault* slow = fault("slow_launch", operations_)) {
    launching_ = operation;
    launching_polls_ = slow->polls;
    return NcclResult::InProgress;
  }
  put_on_stream(operation);
  return NcclResult::Success;
}

void FakeCommunicator::put_on_stream(const FakeOperation& operation) {
  auto* const task = new Task{this, operation, operations_++};
  ++device_.running;
  operation.stream->enqueue(
      [](void* argument) {
        const std::unique_ptr<Task> given(static_cast<Task*>(argument));
        FakeDevice& device = given->one->device_;
        given->one->run(*given);
        --device.running;
      },
      task
  );
}

bool FakeCommunicator::wait_for(const std::function<bool(const FakeSeat&)>& ready) {
  FakeMemory& memory = world_->memory();
  while (!stopped()) {
    if (std::all_of(memory.seats, memory.seats + ranks_, ready)) {
      return true;
    }
    if (const int gone = world_->gone(); gone >= 0 && gone != rank_) {
      fail(NcclResult::RemoteError, "rank " + std::to_string(gone) + " closed its connection");
      hang(&aborted_);  // the kernel spins until it is aborted
      return false;
    }
    std::this_thread::sleep_for(kPause);
  }
  return false;
}

void FakeCommunicator::run(const Task& task) {
  const FakeOperation& operation = task.operation;
  if (fault("never_comes", task.number) != nullptr) {
    hang(&aborted_);
    return;
  }
  if (!all_begin(task)) {
    return;
  }
  const std::size_t total = operation.kind == FakeKind::ReduceScatter
                                ? operation.elements * static_cast<std::size_t>(ranks_)
                                : operation.elements;
  const std::size_t in_piece = kSlotBytes / size_of(operation.type);
  const std::size_t pieces = (total + in_piece - 1) / in_piece;
  const bool stops = fault("stops", task.number) != nullptr;
  const FakeFault* const error = fault("error", task.number);
  if (!exchange(task, stops || error != nullptr ? pieces / 2 : pieces)) {
    return;
  }
  if (error != nullptr) {
    error_code_ = static_cast<NcclResult>(error->code);
    error_polls_ = error->polls;
    if (error->polls == 0) {
      fail(error_code_, "told to fail");
    }
    while (!stopped() && state_ == NcclResult::Success) {
      std::this_thread::sleep_for(kPause);
    }
  } else if (stops) {
    hang(&aborted_);
  }
}

/// NCCL would hang, or add up what does not belong together.
bool FakeCommunicator::all_begin(const Task& task) {
  const FakeCall call{
      static_cast<std::uint32_t>(task.operation.kind),
      static_cast<std::uint32_t>(task.operation.type),
      task.operation.elements};
  const auto begun = static_cast<std::uint64_t>(task.number) + 1;
  own().call = call;
  own().begun = begun;
  if (!wait_for([&](const FakeSeat& seat) { return seat.begun >= begun; })) {
    return false;
  }
  for (int other = 0; other < ranks_; ++other) {
    const FakeCall& theirs = world_->memory().seats[other].call;
    if (theirs != call) {
      fail(
          NcclResult::InvalidUsage,
          "operation " + std::to_string(task.number) + ": rank " + std::to_string(rank_) + " has kind " +
              std::to_string(call.kind) + " of " + std::to_string(call.elements) + ", rank " + std::to_string(other) +
              " kind " + std::to_string(theirs.kind) + " of " + std::to_string(theirs.elements)
      );
      hang(&aborted_);
      return false;
    }
  }
  return true;
}

bool FakeCommunicator::exchange(const Task& task, std::size_t pieces) {
  const FakeOperation& operation = task.operation;
  const std::size_t size = size_of(operation.type);
  const std::size_t in_piece = kSlotBytes / size;
  const std::size_t total = operation.kind == FakeKind::ReduceScatter
                                ? operation.elements * static_cast<std::size_t>(ranks_)
                                : operation.elements;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const std::size_t first = piece * in_piece;
    const std::size_t count = std::min(in_piece, total - first);
    const std::uint64_t now = pieces_++;
    if (!wait_for([&](const FakeSeat& seat) { return seat.read >= now; })) {
      return false;
    }
    std::memcpy(own().slot, operation.from + first * size, count * size);
    own().written = now + 1;
    if (!wait_for([&](const FakeSeat& seat) { return seat.written > now; })) {
      return false;
    }
    write_outputs(operation, first, count, piece);
    own().read = now + 1;
  }
  return true;
}

void FakeCommunicator::write_outputs(
    const FakeOperation& operation, std::size_t first, std::size_t count, std::uint64_t piece
) {
  const std::size_t size = size_of(operation.type);
  const FakeSeat* const seats = world_->memory().seats;
  const auto ranks = static_cast<std::size_t>(ranks_);
  if (operation.kind == FakeKind::AllGather) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::memcpy(operation.to + (rank * operation.elements + first) * size, seats[rank].slot, count * size);
    }
    return;
  }
  const std::size_t own_first = operation.kind == FakeKind::ReduceScatter ? operation.elements * rank_ : 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t element = first + i;
    if (element < own_first || element >= own_first + operation.elements) {
      continue;
    }
    double sum = load(operation.type, seats[piece % ranks].slot + i * size);
    for (std::size_t hop = 1; hop < ranks; ++hop) {
      sum = add(operation.type, sum, load(operation.type, seats[(piece + hop) % ranks].slot + i * size));
    }
    store(operation.type, sum, operation.to + (element - own_first) * size);
  }
}

void FakeCommunicator::finish_abort() {
  stop_joining();
  if (world_ != nullptr) {
    own().left = 1;
  }
  launching_.reset();
  ended_ = true;
}

}  // namespace gradsync::fakes
