#include "gpu/experiments/cuda_calls.hpp"

#include "gpu/experiments/message.hpp"

#include <sched.h>
#include <stdexcept>

namespace gradsync::experiments {
namespace {

template <typename Function>
void find(Function& function, const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  // 12000: the versions of the functions that cuda.h of CUDA 13 declares under these names.
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || address == nullptr) {
    throw std::runtime_error(std::string("the driver has no ") + name + " (" + name_of(error) + ")");
  }
  function = reinterpret_cast<Function>(address);
}

Driver find_all() {
  Driver table{};
  find(table.memory_allocate, "cuMemAlloc");
  find(table.memory_free, "cuMemFree");
  find(table.address_range, "cuMemGetAddressRange");
  find(table.ipc_get, "cuIpcGetMemHandle");
  find(table.ipc_open, "cuIpcOpenMemHandle");
  find(table.ipc_close, "cuIpcCloseMemHandle");
  find(table.wait_value, "cuStreamWaitValue64");
  find(table.write_value, "cuStreamWriteValue64");
  find(table.device_attribute, "cuDeviceGetAttribute");
  find(table.error_name, "cuGetErrorName");
  return table;
}

}  // namespace

std::string name_of(cudaError_t error) { return cudaGetErrorName(error); }

std::string name_of(CUresult error) {
  const char* name = nullptr;
  if (driver().error_name(error, &name) != CUDA_SUCCESS || name == nullptr) {
    return "CUresult " + std::to_string(static_cast<int>(error));
  }
  return std::string(name) + " (" + std::to_string(static_cast<int>(error)) + ")";
}

void must(cudaError_t error, const char* call) {
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    throw std::runtime_error(std::string(call) + ": " + name_of(error) + ", " + cudaGetErrorString(error));
  }
}

void must(CUresult error, const char* call) {
  if (error != CUDA_SUCCESS) {
    throw std::runtime_error(std::string(call) + ": " + name_of(error));
  }
}

const Driver& driver() {
  static const Driver table = find_all();
  return table;
}

std::string missing_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) {
    return "";
  }
  return error == cudaSuccess ? "cudaGetDeviceCount says 0" : name_of(error) + ": " + cudaGetErrorString(error);
}

DeviceIdentity device_identity() {
  int version = 0;
  must(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  cudaDeviceProp properties{};
  must(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  return {properties.name, "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10)};
}

int attribute(CUdevice_attribute which) {
  int value = 0;
  must(driver().device_attribute(&value, which, 0), "cuDeviceGetAttribute");
  return value;
}

Stream::Stream(int priority) {
  must(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority), "cudaStreamCreateWithPriority");
}

void Stream::wait_at_least(CUdeviceptr flag, std::uint64_t value) const {
  must(driver().wait_value(stream_, flag, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue64");
}

void Stream::write(CUdeviceptr flag, std::uint64_t value) const {
  must(driver().write_value(stream_, flag, value, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue64");
}

void Stream::copy_to_host(void* to, CUdeviceptr from, std::size_t bytes) const {
  must(
      cudaMemcpyAsync(to, reinterpret_cast<const void*>(from), bytes, cudaMemcpyDeviceToHost, stream_),
      "cudaMemcpyAsync to the host"
  );
  synchronize();
}

void Stream::copy_to_device(CUdeviceptr to, const void* from, std::size_t bytes) const {
  must(
      cudaMemcpyAsync(reinterpret_cast<void*>(to), from, bytes, cudaMemcpyHostToDevice, stream_),
      "cudaMemcpyAsync to the device"
  );
  synchronize();
}

void Stream::zero(CUdeviceptr at, std::size_t bytes) const {
  must(cudaMemsetAsync(reinterpret_cast<void*>(at), 0, bytes, stream_), "cudaMemsetAsync");
}

bool Stream::done() const {
  const cudaError_t error = cudaStreamQuery(stream_);
  if (error == cudaErrorNotReady) {
    return false;
  }
  must(error, "cudaStreamQuery");
  return true;
}

void Stream::synchronize() const { must(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

bool Stream::done_within(double seconds) const {
  const Deadline deadline(seconds);
  while (!done()) {
    if (deadline.passed()) {
      return false;
    }
    (void)sched_yield();
  }
  return true;
}

Event::Event(unsigned flags) { must(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags"); }

void Event::record(const Stream& stream) const { must(cudaEventRecord(event_, stream.get()), "cudaEventRecord"); }

bool Event::done() const {
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) {
    return false;
  }
  must(error, "cudaEventQuery");
  return true;
}

double Event::milliseconds_since(const Event& earlier) const {
  float milliseconds = 0;
  must(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "cudaEventElapsedTime");
  return milliseconds;
}

}  // namespace gradsync::experiments
