#pragma once
// The CUDA driver by name, so that the programs start where there is none, and the one way in which an error is
// noticed.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <string>

namespace gradsync::experiments {

/// Throw with the call and the error's name.
void must(cudaError_t error, const char* call);
void must(CUresult error, const char* call);

std::string name_of(cudaError_t error);
std::string name_of(CUresult error);

/// The driver's functions that the experiments use, as the gradsync client and worker will: exported and opened through
/// the driver API.
struct Driver {
  decltype(&::cuMemAlloc) memory_allocate;
  decltype(&::cuMemFree) memory_free;
  decltype(&::cuMemGetAddressRange) address_range;
  decltype(&::cuIpcGetMemHandle) ipc_get;
  decltype(&::cuIpcOpenMemHandle) ipc_open;
  decltype(&::cuIpcCloseMemHandle) ipc_close;
  decltype(&::cuStreamWaitValue64) wait_value;
  decltype(&::cuStreamWriteValue64) write_value;
  decltype(&::cuDeviceGetAttribute) device_attribute;
  decltype(&::cuGetErrorName) error_name;
};

/// Throws when a function is missing.
const Driver& driver();

/// Why there is no device, or nothing. Makes no context.
std::string missing_device();

struct DeviceIdentity {
  std::string name;
  std::string driver;
};

DeviceIdentity device_identity();

int attribute(CUdevice_attribute which);

class Stream {
 public:
  /// Never waits for the default stream. 0 is the normal priority, lower numbers go first.
  explicit Stream(int priority = 0);
  Stream(Stream&&) = delete;
  Stream& operator=(Stream&&) = delete;
  // Not destroyed: it may hold a wait that nothing ends, and the process ends soon.
  ~Stream() = default;

  [[nodiscard]] cudaStream_t get() const { return stream_; }

  void wait_at_least(CUdeviceptr flag, std::uint64_t value) const;
  void write(CUdeviceptr flag, std::uint64_t value) const;
  void copy_to_host(void* to, CUdeviceptr from, std::size_t bytes) const;
  void copy_to_device(CUdeviceptr to, const void* from, std::size_t bytes) const;
  void zero(CUdeviceptr at, std::size_t bytes) const;

  [[nodiscard]] bool done() const;
  void synchronize() const;
  /// Polls; false when it is not done within the seconds.
  [[nodiscard]] bool done_within(double seconds) const;

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(unsigned flags = cudaEventDefault);
  Event(Event&&) = delete;
  Event& operator=(Event&&) = delete;
  ~Event() = default;

  [[nodiscard]] cudaEvent_t get() const { return event_; }

  void record(const Stream& stream) const;
  [[nodiscard]] bool done() const;
  [[nodiscard]] double milliseconds_since(const Event& earlier) const;

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace gradsync::experiments
