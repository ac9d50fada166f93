#include "simt.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <ucontext.h>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace simt {

namespace {

constexpr std::size_t kStackBytes = 128U << 10;

struct Rendezvous {
  unsigned alive = 0;
  unsigned waiting = 0;
  unsigned generation = 0;
};

struct Warp {
  Rendezvous meeting;
  WarpOperation operation = WarpOperation::ShuffleDown;
  WarpValues values[2] = {};  // of this and of the previous operation: lanes still read those
};

struct Block {
  dim3 index;
  Rendezvous meeting;
  int gathered = 0;
  int result = 0;
  std::vector<Warp> warps;
  std::map<const void*, std::unique_ptr<std::max_align_t[]>> shared;
};

struct Fiber {
  dim3 index;
  Block* block = nullptr;
  Rendezvous* waits_at = nullptr;
  unsigned waits_for = 0;  // the generation after the one it arrived in
  std::size_t warp = 0;    // of all resident ones
  bool done = false;
  ucontext_t context{};
  char* stack = nullptr;
  void* fake_stack = nullptr;
};

struct Grid {
  dim3 size;
  const std::function<void()>* kernel = nullptr;
  ucontext_t scheduler{};
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
};

Settings the_settings;
Grid grid;
Fiber* current = nullptr;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "simt: %s\n", what);
  std::abort();
}

// AddressSanitizer wants to be told of every change of stack.
void leave_for(Fiber* fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&grid.scheduler_fake_stack, fiber->stack, kStackBytes);
#endif
  current = fiber;
  swapcontext(&grid.scheduler, &fiber->context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(grid.scheduler_fake_stack, nullptr, nullptr);
#endif
}

void back_to_scheduler(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(
      fiber.done ? nullptr : &fiber.fake_stack, grid.scheduler_stack, grid.scheduler_stack_bytes
  );
#endif
  swapcontext(&fiber.context, &grid.scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &grid.scheduler_stack, &grid.scheduler_stack_bytes);
#endif
}

void release(Rendezvous& meeting) {
  meeting.waiting = 0;
  ++meeting.generation;
}

bool complete(const Rendezvous& meeting) { return meeting.waiting == meeting.alive; }

void wait(Rendezvous& meeting) {
  current->waits_at = &meeting;
  current->waits_for = meeting.generation + 1;
  back_to_scheduler(*current);
}

void release_block(Block& block) {
  block.result = block.gathered;
  block.gathered = 0;
  release(block.meeting);
}

void run_thread() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &grid.scheduler_stack, &grid.scheduler_stack_bytes);
#endif
  (*grid.kernel)();
  Fiber& fiber = *current;
  Block& block = *fiber.block;
  Warp& warp = block.warps[fiber.index.x / kWarpSize];
  // Threads that have ended are not waited for.
  --warp.meeting.alive;
  if (warp.meeting.alive != 0 && warp.meeting.waiting != 0) {
    fail("a lane ended while others of its warp wait for it");
  }
  --block.meeting.alive;
  if (block.meeting.alive != 0 && complete(block.meeting)) {
    release_block(block);
  }
  fiber.done = true;
  back_to_scheduler(fiber);
}

/// Stacks are kept from launch to launch.
char* stack_of(std::size_t index) {
  static std::vector<char*> stacks;
  while (stacks.size() <= index) {
    void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      fail("no memory for the stacks of the threads");
    }
    stacks.push_back(static_cast<char*>(memory));
  }
  return stacks[index];
}

void start(Fiber& fiber) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, run_thread, 0);
}

bool runnable(const Fiber& fiber) {
  return !fiber.done && (fiber.waits_at == nullptr || fiber.waits_at->generation == fiber.waits_for);
}

void run(std::vector<Fiber>& fibers, std::mt19937_64& random) {
  std::vector<Fiber*> order;
  for (Fiber& fiber : fibers) {
    order.push_back(&fiber);
  }
  if (the_settings.order == ThreadOrder::Descending) {
    std::reverse(order.begin(), order.end());
  }
  bool all = true;
  while (!order.empty()) {
    if (the_settings.order == ThreadOrder::Shuffled) {
      std::shuffle(order.begin(), order.end(), random);
    }
    // In shuffled order most warps stand still in most rounds, so that some are far ahead of others.
    const std::uint64_t moving = all ? ~0ULL : random() & random();
    bool moved = false;
    for (Fiber* fiber : order) {
      if (runnable(*fiber) && ((moving >> (fiber->warp % 64)) & 1) != 0) {
        moved = true;
        fiber->waits_at = nullptr;
        leave_for(fiber);
      }
    }
    if (!moved && all) {
      fail("deadlock: every thread waits for one that does not come");
    }
    all = !moved || the_settings.order != ThreadOrder::Shuffled;
    std::erase_if(order, [](const Fiber* fiber) { return fiber->done; });
  }
}

}  // namespace

Settings& settings() { return the_settings; }

int capability() {
  if (the_settings.capability != 0) {
    return the_settings.capability;
  }
  const char* given = std::getenv("GRADSYNC_SIMT_CAPABILITY");
  return given == nullptr ? 90 : std::atoi(given);
}

namespace {

/// One stream: work in order, done by whoever waits, or by a thread of its own.
class Stream {
 public:
  bool enqueue(std::function<bool()> work) {
    std::unique_lock lock(mutex_);
    if (!deferring && !thread_.joinable()) {
      lock.unlock();
      return work();
    }
    waiting_.push_back(std::move(work));
    changed_.notify_all();
    return true;
  }

  bool finish() {
    std::unique_lock lock(mutex_);
    while (!thread_.joinable() && !waiting_.empty()) {
      do_next(lock);
    }
    changed_.wait(lock, [this] { return waiting_.empty() && !busy_; });
    return std::exchange(good_, true);
  }

  void begin() {
    const std::scoped_lock beginning(mutex_);
    thread_ = std::thread([this] {
      std::unique_lock lock(mutex_);
      while (true) {
        changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
        if (waiting_.empty()) {
          return;
        }
        do_next(lock);
      }
    });
  }

  void end() {
    {
      const std::scoped_lock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
    const std::scoped_lock lock(mutex_);
    thread_ = {};
    ending_ = false;
  }

  std::atomic<bool> deferring = false;

 private:
  void do_next(std::unique_lock<std::mutex>& lock) {
    const std::function<bool()> work = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    const bool good = work();
    lock.lock();
    good_ = good && good_;
    busy_ = false;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<bool()>> waiting_;
  std::thread thread_;
  bool busy_ = false;
  bool ending_ = false;
  bool good_ = true;
};

Stream& stream() {
  static auto* const one = new Stream;  // it outlives the thread that a process leaves behind when it ends
  return *one;
}

std::mutex host_mutex;
std::map<const char*, std::size_t> host_memory;

}  // namespace

void Deferred::defer(bool on) { stream().deferring = on; }

bool Deferred::enqueue(std::function<bool()> work) { return stream().enqueue(std::move(work)); }

bool Deferred::finish() { return stream().finish(); }

void* Deferred::allocate_host(std::size_t bytes) {
  const std::scoped_lock lock(host_mutex);
  auto* memory = static_cast<char*>(::operator new(bytes, std::align_val_t{4096}));
  std::memset(memory, 0, bytes);
  if (host_memory.empty()) {
    stream().begin();
  }
  host_memory[memory] = bytes;
  return memory;
}

void Deferred::free_host(void* memory) {
  (void)finish();
  const std::scoped_lock lock(host_mutex);
  if (host_memory.erase(static_cast<char*>(memory)) != 0) {
    if (host_memory.empty()) {
      stream().end();
    }
    ::operator delete(memory, std::align_val_t{4096});
  }
}

bool Deferred::reaches(const void* memory) {
  const std::scoped_lock lock(host_mutex);
  const auto* at = static_cast<const char*>(memory);
  const auto after = host_memory.upper_bound(at);
  return after != host_memory.begin() && at < std::prev(after)->first + std::prev(after)->second;
}

namespace {

int lost_by = 0;
int coming_fault = 0;
unsigned good_launches = 0;

/// Reads what a test asked for.
void take_fault() {
  const char* folder = std::getenv("GRADSYNC_SIMT_FAULTS");
  if (folder == nullptr || coming_fault != 0) {
    return;
  }
  const char* device = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string path = std::string(folder) + "/" + (device == nullptr ? "0" : device);
  if (std::ifstream file(path); file >> coming_fault) {
    file >> good_launches;
    (void)std::remove(path.c_str());
  }
}

/// Whether the device is lost at this launch.
bool faults_now() {
  take_fault();
  if (lost_by == 0 && coming_fault != 0 && good_launches-- == 0) {
    lost_by = coming_fault;
  }
  return lost_by != 0;
}

}  // namespace

int fault() { return lost_by; }

bool launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  // Ranks of a test may be threads of one process; there is one grid.
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  if (++the_settings.launches == the_settings.failing_launch) {
    return false;
  }
  if (faults_now()) {
    return false;
  }
  if (blocks == 0 || threads == 0 || threads > 1024 || threads % kWarpSize != 0) {
    fail("a launch with a size that a GPU would refuse, or with half a warp");
  }
  std::mt19937_64 random(the_settings.seed);
  grid.size = dim3(blocks);
  grid.kernel = &kernel;
  for (unsigned first = 0; first < blocks; first += kResidentBlocks) {
    std::vector<Block> resident(std::min(kResidentBlocks, blocks - first));
    std::vector<Fiber> fibers(resident.size() * threads);
    for (std::size_t i = 0; i < fibers.size(); ++i) {
      Block& block = resident[i / threads];
      block.index = dim3(first + static_cast<unsigned>(i / threads));
      block.meeting.alive = threads;
      block.warps.resize(threads / kWarpSize);
      fibers[i].index = dim3(static_cast<unsigned>(i % threads));
      fibers[i].block = &block;
      fibers[i].warp = i / kWarpSize;
      fibers[i].stack = stack_of(i);
      block.warps[fibers[i].index.x / kWarpSize].meeting.alive = kWarpSize;
    }
    for (Fiber& fiber : fibers) {
      start(fiber);
    }
    run(fibers, random);
  }
  return true;
}

const dim3& thread_index() { return current->index; }

const dim3& block_index() { return current->block->index; }

const dim3& grid_size() { return grid.size; }

unsigned lane() { return current->index.x % kWarpSize; }

int block_barrier(int value) {
  Block& block = *current->block;
  block.gathered |= value;
  ++block.meeting.waiting;
  if (complete(block.meeting)) {
    release_block(block);
  } else {
    wait(block.meeting);
  }
  return block.result;
}

const WarpValues& warp_exchange(WarpOperation operation, std::uint64_t value) {
  Warp& warp = current->block->warps[current->index.x / kWarpSize];
  if (warp.meeting.waiting == 0) {
    warp.operation = operation;
  } else if (warp.operation != operation) {
    fail("lanes of a warp meet in different operations");
  }
  WarpValues& values = warp.values[warp.meeting.generation % 2];
  values[lane()] = value;
  ++warp.meeting.waiting;
  if (complete(warp.meeting)) {
    release(warp.meeting);
  } else {
    wait(warp.meeting);
  }
  return values;
}

void* shared_memory(const void* key, std::size_t bytes) {
  auto& place = current->block->shared[key];
  if (place == nullptr) {
    const std::size_t units = (bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t);
    place = std::make_unique<std::max_align_t[]>(units);
    std::memset(static_cast<void*>(place.get()), 0xff, units * sizeof(std::max_align_t));
  }
  return place.get();
}

}  // namespace simt

extern "C" __attribute__((visibility("default"))) void gradsync_emulation_defer(int on);
extern "C" __attribute__((visibility("default"))) int gradsync_emulation_wait();

/// For tests that load the library of the emulation: the device does nothing before the host waits.
extern "C" void gradsync_emulation_defer(int on) { simt::Deferred::defer(on != 0); }

/// For tests that load the library of the emulation: waits for the stream, as cudaStreamSynchronize does.
extern "C" int gradsync_emulation_wait() { return simt::Deferred::finish() ? 0 : 1; }
