#pragma once
// A grid of CUDA threads on one thread of the host: every thread is a fiber that runs until a barrier or a warp
// operation and then lets the others run, in an order that tests choose. Several blocks are resident at a time and
// advance in turns, so that claims, tickets and "the last one" really happen between blocks.
//
// What it shows: wrong indices and tails (with AddressSanitizer), a missing barrier (bits that change with the order),
// a barrier or shuffle that not all threads reach (it aborts), wrong counters, and the bits of every sum. What it
// cannot: races that need two threads at the same instant or a weaker memory model, hardware's alignment faults, and
// anything about speed.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace simt {

inline constexpr int kMultiprocessors = 1;
inline constexpr unsigned kResidentBlocks = 4;
inline constexpr unsigned kWarpSize = 32;

struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;

  dim3(unsigned size = 1) : x(size) {}  // NOLINT(google-explicit-constructor): as in CUDA
};

/// Shuffled: in another order each time, and most warps stand still most of the time.
enum class ThreadOrder : std::uint8_t { Ascending, Descending, Shuffled };

/// How the next launches run.
struct Settings {
  ThreadOrder order = ThreadOrder::Ascending;
  std::uint64_t seed = 1;       ///< of Shuffled
  unsigned launches = 0;        ///< counted up
  unsigned failing_launch = 0;  ///< when `launches` reaches this number the launch fails; 0: none does
  int capability = 0;           ///< of the device, 75 for 7.5; 0: what $GRADSYNC_SIMT_CAPABILITY says, else 90
};

Settings& settings();

/// What the device can: code for it exists from 80 on.
int capability();

inline bool has_code() { return capability() >= 80; }

/// Work that the device has not begun: where `defer` was asked for nothing is done before the host waits for it, so
/// that a wait that is missing shows. While there is host memory that the device reaches, a thread does it in order, as
/// a stream does, because that memory is there to let a stream wait while the host goes on.
class Deferred {
 public:
  static void defer(bool on);

  /// Does it now, or later. False: it was done and failed.
  static bool enqueue(std::function<bool()> work);

  /// Host memory that the device reaches comes, and goes; with the last one the thread ends.
  static void* allocate_host(std::size_t bytes);
  static void free_host(void* memory);

  /// Whether the device reaches it, so that a copy is made when the stream gets there.
  static bool reaches(const void* memory);

  /// Does all of it. False: some of it failed.
  static bool finish();
};

/// The error by which the device is lost: every call gives it from then on. 0: it is well. Where $GRADSYNC_SIMT_FAULTS
/// names a folder, a test loses the device by a file in it that has the name of the device (the value of
/// CUDA_VISIBLE_DEVICES, or "0"): it holds the error and, after a space, how many launches are still good. The next
/// launch takes the file away, so that another process finds its device well.
int fault();

/// Runs the grid to its end. False: the failure that was asked for, or the device is lost.
bool launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel);

// Inside a kernel.

const dim3& thread_index();
const dim3& block_index();
const dim3& grid_size();
unsigned lane();

/// Waits for all threads of the block; the bitwise or of what they brought.
int block_barrier(int value);

enum class WarpOperation : std::uint8_t { ShuffleDown, ReduceAdd };
using WarpValues = std::array<std::uint64_t, kWarpSize>;

/// Waits for all lanes of the warp, which must do the same; valid until this thread's next warp operation.
const WarpValues& warp_exchange(WarpOperation operation, std::uint64_t value);

/// Memory of the current block, found by a key; made on first use.
void* shared_memory(const void* key, std::size_t bytes);

template <typename T, typename Place>
T& shared(Place /*place*/) {
  static const char key = 0;
  return *static_cast<T*>(shared_memory(&key, sizeof(T)));
}

}  // namespace simt
