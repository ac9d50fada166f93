// Stands for libcuda.so.1 in a trainer of a test: the calls that clients/python/src/gradsync/_gpu/_driver.py makes, on
// memory of memfds, which a worker on the emulated kernels maps by its handle. Devices are those that
// CUDA_VISIBLE_DEVICES names by UUID, or one with a UUID of zeros. GRADSYNC_FAKE_CUDA_REFUSES is the error that opening
// its handles gives; GRADSYNC_FAKE_CUDA_FAILS, as "name=error", makes a call fail here; GRADSYNC_FAKE_CUDA_UNSHARED is
// an address whose allocation is of a kind that CUDA does not share.

#include "kernels/simt/exported_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr int kIsLegacyCudaIpcCapable = 10;

struct Memory {
  int fd;
  std::size_t bytes;
};

std::mutex mutex;
std::map<unsigned long long, Memory> allocations;

int failure_of(const char* name) {
  const char* text = std::getenv("GRADSYNC_FAKE_CUDA_FAILS");
  const std::size_t length = std::strlen(name);
  const bool fails = text != nullptr && std::strncmp(text, name, length) == 0 && text[length] == '=';
  return fails ? std::atoi(text + length + 1) : 0;
}

std::vector<std::string> uuids() {
  std::vector<std::string> found;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string text = visible == nullptr ? "" : visible;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    std::string digits;
    for (const char c : text.substr(at, comma - at)) {
      if (c != '-') {
        digits += c;
      }
    }
    found.push_back(digits.substr(std::min<std::size_t>(3, digits.size())));  // behind "GPU"
    at = comma + 1;
  }
  return visible == nullptr ? std::vector<std::string>{std::string(32, '0')} : found;
}

}  // namespace

EXPORT int gradsync_emulated_driver() { return 1; }

EXPORT int cuInit(unsigned) {
  return failure_of("cuInit") != 0 ? failure_of("cuInit") : uuids().empty() ? kNoDevice : 0;
}

EXPORT int cuGetErrorName(int code, const char** name) {
  *name = code == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_EMULATED";
  return 0;
}

EXPORT int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(uuids().size());
  return failure_of("cuDeviceGetCount");
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && static_cast<std::size_t>(ordinal) < uuids().size() ? 0 : kInvalidDevice;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char* bytes, int device) {
  const std::string digits = uuids().at(static_cast<std::size_t>(device));
  for (std::size_t i = 0; i < 16; ++i) {
    bytes[i] = static_cast<unsigned char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  }
  return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  static int contexts[64];
  *context = &contexts[device];
  return 0;
}

EXPORT int cuCtxPushCurrent_v2(void*) { return 0; }

EXPORT int cuCtxPopCurrent_v2(void**) { return 0; }

EXPORT int cuCtxSynchronize() { return failure_of("cuCtxSynchronize"); }

EXPORT int cuMemAlloc_v2(unsigned long long* address, std::size_t bytes) {
  if (const int code = failure_of("cuMemAlloc_v2")) {
    return code;
  }
  const int fd = ::memfd_create(simt::kMemoryName, MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    return kOutOfMemory;
  }
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    ::close(fd);
    return kOutOfMemory;
  }
  std::memset(at, 0xff, bytes);  // as on a GPU nothing is known of what is in it
  *address = reinterpret_cast<unsigned long long>(at);
  const std::lock_guard lock(mutex);
  allocations[*address] = {fd, bytes};
  return 0;
}

EXPORT int cuMemsetD8_v2(unsigned long long address, unsigned char value, std::size_t bytes) {
  std::memset(reinterpret_cast<void*>(address), value, bytes);
  return 0;
}

EXPORT int cuMemFree_v2(unsigned long long address) {
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(address);
  if (found == allocations.end()) {
    return kInvalidValue;
  }
  ::munmap(reinterpret_cast<void*>(address), found->second.bytes);
  ::close(found->second.fd);
  allocations.erase(found);
  return 0;
}

EXPORT int cuMemGetAddressRange_v2(unsigned long long* base, std::size_t* bytes, unsigned long long address) {
  const std::lock_guard lock(mutex);
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin() || (--after)->first + after->second.bytes <= address) {
    return kInvalidValue;
  }
  *base = after->first;
  *bytes = after->second.bytes;
  return 0;
}

EXPORT int cuPointerGetAttribute(void* value, int attribute, unsigned long long address) {
  if (const int code = failure_of("cuPointerGetAttribute")) {
    return code;
  }
  unsigned long long base = 0;
  std::size_t bytes = 0;
  if (attribute != kIsLegacyCudaIpcCapable || cuMemGetAddressRange_v2(&base, &bytes, address) != 0) {
    return kInvalidValue;
  }
  const char* text = std::getenv("GRADSYNC_FAKE_CUDA_UNSHARED");
  const unsigned long long unshared = text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
  const int capable = unshared < base || unshared - base >= bytes ? 1 : 0;
  std::memcpy(value, &capable, sizeof capable);
  return 0;
}

EXPORT int cuIpcGetMemHandle(simt::MemoryHandle* handle, unsigned long long address) {
  if (const int code = failure_of("cuIpcGetMemHandle")) {
    return code;
  }
  unsigned long long base = 0;
  std::size_t bytes = 0;
  if (cuMemGetAddressRange_v2(&base, &bytes, address) != 0) {
    return kInvalidValue;
  }
  const std::lock_guard lock(mutex);
  *handle = simt::handle_of(allocations.at(base).fd);
  const char* refuses = std::getenv("GRADSYNC_FAKE_CUDA_REFUSES");
  handle->refused = refuses == nullptr ? 0 : std::atoi(refuses);
  return 0;
}
