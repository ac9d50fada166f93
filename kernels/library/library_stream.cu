// The C interface of a worker: streams for collectives, and memory that is released when these are empty.

#include "kernels/library/device_memory.cuh"
#include "kernels/library/gpu_calls.cuh"
#include "kernels/library/gradsync_gpu.h"

#include <algorithm>
#include <cstdint>
#include <cuda_runtime.h>
#include <deque>
#include <vector>

using gradsync::kernels::guarded;
using gradsync::kernels::must;
using gradsync::kernels::release_kept;

inline namespace of_library_stream {

struct Kept {
  void* address;
  cudaError_t (*release)(void* address);
};

/// All streams that there are, and what was given back while one of them was busy.
struct Streams {
  std::vector<gradsync_stream*> all;
  std::vector<Kept> kept;
};

Streams& streams() {
  static Streams one;
  return one;
}

}  // namespace of_library_stream

struct gradsync_stream {
  gradsync_stream() {
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    streams().all.push_back(this);
  }

  gradsync_stream(const gradsync_stream&) = delete;
  gradsync_stream& operator=(const gradsync_stream&) = delete;

  ~gradsync_stream() {
    std::erase(streams().all, this);
    for (const auto& list : {std::vector<cudaEvent_t>(marks.begin(), marks.end()), spare}) {
      for (const cudaEvent_t event : list) {
        (void)cudaEventDestroy(event);
      }
    }
    (void)cudaStreamDestroy(stream);
    (void)release_kept();
  }

  void mark() {
    cudaEvent_t event = nullptr;
    if (spare.empty()) {
      must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    } else {
      event = spare.back();
      spare.pop_back();
    }
    marks.push_back(event);
    must(cudaEventRecord(event, stream), "marking a stream");
    expects = false;
  }

  /// Not cudaSuccess: it has marks that it has not passed, or the device failed.
  cudaError_t look() {
    while (!marks.empty()) {
      if (const cudaError_t state = cudaEventQuery(marks.front()); state != cudaSuccess) {
        (void)cudaGetLastError();
        return state;
      }
      spare.push_back(marks.front());
      marks.pop_front();
      ++passed;
    }
    return cudaSuccess;
  }

  [[nodiscard]] bool busy() { return expects || look() == cudaErrorNotReady; }

  cudaStream_t stream = nullptr;
  bool expects = false;           ///< something is enqueued, or soon will be: NCCL does it on threads of its own
  std::deque<cudaEvent_t> marks;  ///< that it has not passed
  std::vector<cudaEvent_t> spare;
  std::uint64_t passed = 0;
};

namespace gradsync::kernels {

inline namespace of_gpu_library {

cudaError_t release_kept() {
  const auto busy = [](gradsync_stream* each) { return each->busy(); };
  if (std::any_of(streams().all.begin(), streams().all.end(), busy)) {
    return cudaSuccess;
  }
  cudaError_t first = cudaSuccess;
  for (const Kept& each : streams().kept) {
    const cudaError_t released = each.release(each.address);
    first = first == cudaSuccess ? released : first;
  }
  streams().kept.clear();
  return first;
}

cudaError_t give_back(void* address, cudaError_t (*release)(void* address)) {
  if (address != nullptr) {
    streams().kept.push_back({address, release});
  }
  return release_kept();
}

}  // namespace of_gpu_library

}  // namespace gradsync::kernels

GRADSYNC_EXPORT gradsync_stream* gradsync_stream_create(void) {
  gradsync_stream* stream = nullptr;
  guarded([&] { stream = new gradsync_stream; });
  return stream;
}

GRADSYNC_EXPORT void gradsync_stream_destroy(gradsync_stream* stream) { delete stream; }

GRADSYNC_EXPORT void* gradsync_stream_handle(gradsync_stream* stream) {
  stream->expects = true;
  return stream->stream;
}

GRADSYNC_EXPORT int gradsync_stream_mark(gradsync_stream* stream) {
  return guarded([&] { stream->mark(); });
}

GRADSYNC_EXPORT int gradsync_stream_passed(gradsync_stream* stream, uint64_t* marks) {
  return guarded([&] {
    if (const cudaError_t state = stream->look(); state != cudaErrorNotReady) {
      must(state, "asking how far a stream is");
    }
    *marks = stream->passed;
    if (!streams().kept.empty()) {
      (void)release_kept();
    }
  });
}
