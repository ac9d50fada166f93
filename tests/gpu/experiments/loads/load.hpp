#pragma once
// One kind of work over and over, on a stream and a thread of its own, and its rate. At least 20 ms of work are queued,
// so that the GPU never waits for the thread, which may have to wait for a processor.

#include "gpu/experiments/loads/matrix_product.hpp"
#include "gpu/experiments/message.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace gradsync::experiments {

class Load {
 public:
  /// Fields of the message: kind (matrix, memory, copy_device, copy_to_device, copy_to_host), priority, bytes of a
  /// piece, n of the matrices. `block`: two pieces of memory to work on, instead of own memory; 0: none.
  Load(const Message& message, CUdeviceptr block);
  Load(Load&&) = delete;
  Load& operator=(Load&&) = delete;
  ~Load();

  void begin();

  /// Since the last call: 1e12 operations or 1e9 bytes (read and written on the device, carried over the bus) per
  /// second. Throws what ended the thread.
  double rate();

  /// How matrix products are computed.
  [[nodiscard]] const std::string& how() const { return how_; }

  [[nodiscard]] std::size_t queued() const { return queued_; }

 private:
  std::function<void()> piece_of(const std::string& kind, CUdeviceptr from, std::size_t bytes);
  std::function<void()> copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
  void run();

  /// How many pieces are at least 20 ms of work, by the time that some take now.
  [[nodiscard]] std::size_t pieces_to_queue() const;

  Stream stream_;
  CUdeviceptr own_ = 0;
  std::unique_ptr<MatrixProduct> product_;
  std::function<void()> piece_;
  std::string how_;
  double unit_ = 0;
  std::size_t queued_ = 0;  ///< pieces in flight
  std::atomic<std::int64_t> done_{0};
  std::int64_t done_before_ = 0;
  double at_us_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::string failure_;
  std::thread thread_;
};

}  // namespace gradsync::experiments
