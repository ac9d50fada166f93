// The part of the CUDA runtime, the driver and the probe kernels that the experiments use, on the host: memory is
// memfds, a stream is a thread, an IPC handle is a PID and a descriptor. Linked instead of CUDA, it runs every
// experiment's own code between real processes without a GPU. Its answers mean nothing for a GPU.

#include "gpu/experiments/loads/probe_kernels.hpp"
#include "gpu/experiments/message.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace {

using gradsync::experiments::now_us;

struct Handle {
  pid_t pid;
  int descriptor;
  std::size_t bytes;
};

struct Block {
  std::size_t bytes;
  int descriptor;
};

std::mutex blocks_mutex;
std::map<CUdeviceptr, Block> blocks;

CUdeviceptr map(int descriptor, std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (at == MAP_FAILED) {
    return 0;
  }
  const std::lock_guard lock(blocks_mutex);
  blocks[reinterpret_cast<CUdeviceptr>(at)] = {bytes, descriptor};
  return reinterpret_cast<CUdeviceptr>(at);
}

int open_of(const Handle& handle) {
  if (handle.pid == getpid()) {
    return -1;
  }
  return open(
      ("/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.descriptor)).c_str(), O_RDWR | O_CLOEXEC
  );
}

std::atomic<std::int64_t>& word_at(CUdeviceptr at) { return *reinterpret_cast<std::atomic<std::int64_t>*>(at); }

/// Runs what it is given in order, on a thread that is never joined: a wait may have no end.
class FakeStream {
 public:
  FakeStream() {
    std::thread([this] { run(); }).detach();
  }

  void put(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }

  bool idle() {
    const std::lock_guard lock(mutex_);
    return work_.empty();
  }

  void wait_idle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return work_.empty(); });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !work_.empty(); });
      const std::function<void()> work = work_.front();
      lock.unlock();
      work();
      lock.lock();
      work_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
};

FakeStream& of(cudaStream_t stream) {
  static auto* const default_stream = new FakeStream();
  return stream == nullptr ? *default_stream : *reinterpret_cast<FakeStream*>(stream);
}

/// What an event's page holds, shared with the processes that opened it.
struct EventPage {
  std::atomic<std::int64_t> recorded;
  std::atomic<std::int64_t> done;
  std::atomic<std::int64_t> done_at_ns;
};

struct FakeEvent {
  EventPage* page;
  int descriptor;
};

EventPage* event_page(int descriptor) {
  return static_cast<EventPage*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
}

FakeEvent& of(cudaEvent_t event) { return *reinterpret_cast<FakeEvent*>(event); }

void until(const std::function<bool()>& condition) {
  while (!condition()) {
    (void)usleep(5);
  }
}

std::int64_t now_ns() { return static_cast<std::int64_t>(now_us() * 1e3); }

cudaError_t put(cudaStream_t stream, std::function<void()> work) {
  of(stream).put(std::move(work));
  return cudaSuccess;
}

CUresult memory_allocate(CUdeviceptr* at, std::size_t bytes) {
  const std::size_t rounded = (bytes + (2U << 20) - 1) >> 21 << 21;
  const int descriptor = memfd_create("fake-device-memory", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(rounded)) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *at = map(descriptor, rounded);
  return *at == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

// Unmapped memory that a stream still polls would end the process; a GPU's answer is one of the questions.
CUresult forget(CUdeviceptr at) {
  const std::lock_guard lock(blocks_mutex);
  return blocks.erase(at) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult address_range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr at) {
  const std::lock_guard lock(blocks_mutex);
  auto found = blocks.upper_bound(at);
  if (found == blocks.begin()) {
    return CUDA_ERROR_NOT_FOUND;
  }
  --found;
  if (at >= found->first + found->second.bytes) {
    return CUDA_ERROR_NOT_FOUND;
  }
  *base = found->first;
  *bytes = found->second.bytes;
  return CUDA_SUCCESS;
}

CUresult ipc_get(CUipcMemHandle* handle, CUdeviceptr at) {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  if (address_range(&base, &bytes, at) != CUDA_SUCCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Handle content{getpid(), blocks[base].descriptor, bytes};
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &content, sizeof(content));
  return CUDA_SUCCESS;
}

CUresult ipc_open(CUdeviceptr* at, CUipcMemHandle handle, unsigned /*flags*/) {
  Handle content{};
  std::memcpy(&content, &handle, sizeof(content));
  const int descriptor = open_of(content);
  if (descriptor < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *at = map(descriptor, content.bytes);
  return *at == 0 ? CUDA_ERROR_MAP_FAILED : CUDA_SUCCESS;
}

CUresult wait_value(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned /*flags*/) {
  of(stream).put([at, value] { until([&] { return word_at(at).load() - static_cast<std::int64_t>(value) >= 0; }); });
  return CUDA_SUCCESS;
}

CUresult write_value(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned /*flags*/) {
  of(stream).put([at, value] { word_at(at).store(static_cast<std::int64_t>(value)); });
  return CUDA_SUCCESS;
}

CUresult device_attribute(int* value, CUdevice_attribute which, CUdevice /*device*/) {
  *value = which == CU_DEVICE_ATTRIBUTE_MPS_ENABLED ? 0 : 1;
  return CUDA_SUCCESS;
}

CUresult error_name(CUresult /*error*/, const char** name) {
  *name = "CUDA_ERROR_FAKE";
  return CUDA_SUCCESS;
}

}  // namespace

// The names and types are CUDA's own; the headers declare them.
extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result
) {
  static const std::map<std::string_view, void*> functions = {
      {"cuMemAlloc", reinterpret_cast<void*>(memory_allocate)},
      {"cuMemFree", reinterpret_cast<void*>(forget)},
      {"cuMemGetAddressRange", reinterpret_cast<void*>(address_range)},
      {"cuIpcGetMemHandle", reinterpret_cast<void*>(ipc_get)},
      {"cuIpcOpenMemHandle", reinterpret_cast<void*>(ipc_open)},
      {"cuIpcCloseMemHandle", reinterpret_cast<void*>(forget)},
      {"cuStreamWaitValue64", reinterpret_cast<void*>(wait_value)},
      {"cuStreamWriteValue64", reinterpret_cast<void*>(write_value)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(device_attribute)},
      {"cuGetErrorName", reinterpret_cast<void*>(error_name)},
  };
  const auto found = functions.find(symbol);
  *function = found == functions.end() ? nullptr : found->second;
  *result = found == functions.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "fake error"; }

const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  (void)std::strncpy(properties->name, "emulated on the host", sizeof(properties->name) - 1);
  properties->multiProcessorCount = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int) { return cudaSuccess; }

cudaError_t cudaFree(void*) { return cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** at, std::size_t bytes) {
  *at = ::operator new(bytes);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaSuccess; }

cudaError_t cudaHostGetDevicePointer(void** on_device, void* at, unsigned) {
  *on_device = at;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{16} << 30;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = reinterpret_cast<cudaStream_t>(new FakeStream());
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { return of(stream).idle() ? cudaSuccess : cudaErrorNotReady; }

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  of(stream).wait_idle();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  EventPage* page = of(event).page;
  const std::int64_t record = page->recorded.load();
  return put(stream, [=] { until([&] { return page->done.load() >= record; }); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return put(stream, [=] { std::memcpy(to, from, bytes); });
}

cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t stream) {
  return put(stream, [=] { std::memset(at, value, bytes); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const int descriptor = memfd_create("fake-event", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, 4096) != 0) {
    return cudaErrorMemoryAllocation;
  }
  *event = reinterpret_cast<cudaEvent_t>(new FakeEvent{event_page(descriptor), descriptor});
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  EventPage* page = of(event).page;
  const std::int64_t record = ++page->recorded;
  return put(stream, [=] {
    page->done_at_ns = now_ns();
    page->done = record;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return of(event).page->done >= of(event).page->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = static_cast<float>(of(end).page->done_at_ns - of(begin).page->done_at_ns) * 1e-6F;
  return cudaSuccess;
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  const Handle content{getpid(), of(event).descriptor, 4096};
  *handle = {};
  std::memcpy(handle, &content, sizeof(content));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  Handle content{};
  std::memcpy(&content, &handle, sizeof(content));
  const int descriptor = open_of(content);
  if (descriptor < 0) {
    return cudaErrorDeviceUninitialized;
  }
  *event = reinterpret_cast<cudaEvent_t>(new FakeEvent{event_page(descriptor), descriptor});
  return cudaSuccess;
}

}  // extern "C"

namespace gradsync::experiments {

/// For fake_nccl.cpp.
void enqueue_on_fake_stream(cudaStream_t stream, void (*work)(void*), void* argument);

void enqueue_on_fake_stream(cudaStream_t stream, void (*work)(void*), void* argument) {
  of(stream).put([work, argument] { work(argument); });
}

cudaError_t fill_words(CUdeviceptr words, std::size_t count, std::uint32_t value, cudaStream_t stream) {
  return put(stream, [=] { std::fill_n(reinterpret_cast<std::uint32_t*>(words), count, value); });
}

cudaError_t count_different_words(
    CUdeviceptr words, std::size_t count, std::uint32_t value, CUdeviceptr different, cudaStream_t stream
) {
  return put(stream, [=] {
    const auto* first = reinterpret_cast<const std::uint32_t*>(words);
    word_at(different) += static_cast<std::int64_t>(count) - std::count(first, first + count, value);
  });
}

cudaError_t fill_ramp(CUdeviceptr floats, std::size_t count, float base, float slope, cudaStream_t stream) {
  return put(stream, [=] {
    for (std::size_t i = 0; i < count; ++i) {
      reinterpret_cast<float*>(floats)[i] = base + slope * static_cast<float>(i % 251);
    }
  });
}

cudaError_t count_different_ramp(
    CUdeviceptr floats, std::size_t count, float base, float slope, CUdeviceptr different, cudaStream_t stream
) {
  return put(stream, [=] {
    for (std::size_t i = 0; i < count; ++i) {
      word_at(different) += reinterpret_cast<const float*>(floats)[i] != base + slope * static_cast<float>(i % 251);
    }
  });
}

cudaError_t spin(std::uint64_t nanoseconds, cudaStream_t stream) {
  return put(stream, [=] {
    const std::int64_t end = now_ns() + static_cast<std::int64_t>(nanoseconds);
    until([&] { return now_ns() >= end; });
  });
}

cudaError_t stamp(CUdeviceptr at, cudaStream_t stream) {
  return put(stream, [=] { word_at(at) = now_ns(); });
}

cudaError_t store(CUdeviceptr at, std::uint64_t value, cudaStream_t stream) {
  return put(stream, [=] { word_at(at) = static_cast<std::int64_t>(value); });
}

cudaError_t double_floats(CUdeviceptr from, CUdeviceptr to, std::size_t count, cudaStream_t stream) {
  return put(stream, [=] {
    for (std::size_t i = 0; i < count; ++i) {
      reinterpret_cast<float*>(to)[i] = 2 * reinterpret_cast<const float*>(from)[i];
    }
  });
}

cudaError_t multiply_bfloat16(CUdeviceptr, CUdeviceptr, CUdeviceptr, int n, cudaStream_t stream) {
  return spin(static_cast<std::uint64_t>(n) * 100, stream);
}

cudaError_t warm_up_kernels(CUdeviceptr, cudaStream_t) { return cudaSuccess; }

}  // namespace gradsync::experiments
