#pragma once
// Words in memory that a stream waits for or writes. The runtime has no such calls, and finds those of the driver.

#include <atomic>
#include <cstdint>
#include <driver_types.h>
#include <stdexcept>
#include <string>

namespace gradsync::kernels {

/// A function of the driver by which a stream waits for a word, or writes one.
class ValueCall {
 public:
  /// Throws where the driver does not have it.
  explicit ValueCall(const char* name);

  [[nodiscard]] int call(cudaStream_t stream, const std::atomic<std::uint64_t>* word, std::uint64_t value) const {
    using Function = int (*)(cudaStream_t, unsigned long long, unsigned long long, unsigned);
    // Flags of 0: wait for at least this value; write after everything before it, for the whole system to see.
    return reinterpret_cast<Function>(function_)(stream, reinterpret_cast<std::uintptr_t>(word), value, 0);
  }

  void operator()(cudaStream_t stream, const std::atomic<std::uint64_t>* word, std::uint64_t value) const {
    if (const int error = call(stream, word, value); error != 0) {
      throw std::runtime_error(std::string(name_) + ": CUDA error " + std::to_string(error));
    }
  }

 private:
  const char* name_;
  void* function_ = nullptr;
};

}  // namespace gradsync::kernels
