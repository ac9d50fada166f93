#pragma once
// What the functions of gradsync_gpu.h have in common: a failure of CUDA becomes an exception inside, and words and a
// number outside; copies and waits on the stream of the passes, which is the default one.

#include <cstddef>
#include <cuda_runtime.h>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#define GRADSYNC_EXPORT extern "C" __attribute__((visibility("default")))

namespace gradsync::kernels {

inline namespace of_gpu_library {

/// That of this thread.
struct LastFailure {
  std::string words;
  int code = 0;  ///< a cudaError_t; 0: it was not one of CUDA
};

inline LastFailure& last_failure() {
  thread_local LastFailure last;
  return last;
}

class CudaFailure : public std::runtime_error {
 public:
  CudaFailure(cudaError_t code, const std::string& what) : std::runtime_error(what), code_(code) {}

  [[nodiscard]] cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

inline void must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    throw CudaFailure(error, std::string(what) + ": " + cudaGetErrorString(error));
  }
}

/// No exception crosses the interface.
template <typename Body>
int guarded(const Body& body) {
  LastFailure& last = last_failure();
  last.code = 0;
  try {
    body();
    return 0;
  } catch (const CudaFailure& error) {
    last.words = error.what();
    last.code = error.code();
  } catch (const std::bad_alloc&) {
    last.words = "out of memory";
  } catch (const std::exception& error) {
    last.words = error.what();
  }
  return 1;
}

inline void wait(const char* what) { must(cudaStreamSynchronize(nullptr), what); }

inline void upload(void* to, const void* from, std::size_t bytes, const char* what) {
  if (bytes != 0) {
    must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, nullptr), what);
  }
}

inline void download(void* to, const void* from, std::size_t bytes, const char* what) {
  if (bytes != 0) {
    must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, nullptr), what);
  }
}

}  // namespace of_gpu_library

}  // namespace gradsync::kernels
