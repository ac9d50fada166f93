#include "exported_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace simt {

namespace {

constexpr char kMagic[8] = {'e', 'm', 'u', 'l', 'a', 't', 'e', 'd'};

enum CudaError : int {
  kInvalidValue = 1,
  kInvalidContext = 201,
  kMapFailed = 205,
  kPeerAccessUnsupported = 217,
  kInvalidHandle = 400
};

struct Mapping {
  std::size_t bytes = 0;
  int opened = 0;
};

struct Shared {
  std::size_t bytes = 0;
  int descriptor = -1;
};

std::mutex mutex;
std::map<void*, Mapping> mappings;
std::map<void*, Shared> shared;                   // by address; of this process
std::map<std::pair<dev_t, ino_t>, void*> places;  // the same memory has one address, however often it is opened

/// 0: none is named.
std::uint64_t this_device() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? 0 : std::hash<std::string>{}(visible);
}

}  // namespace

MemoryHandle handle_of(int descriptor) {
  MemoryHandle handle{};
  std::memcpy(handle.magic, kMagic, sizeof(kMagic));
  handle.pid = ::getpid();
  handle.descriptor = descriptor;
  handle.device = this_device();
  const char* refused = std::getenv("GRADSYNC_SIMT_REFUSES");
  handle.refused = refused == nullptr ? 0 : std::atoi(refused);
  return handle;
}

void* allocate_shared(std::size_t bytes) {
  const int descriptor = ::memfd_create(kMemoryName, MFD_CLOEXEC);
  if (descriptor < 0 || ::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    ::close(descriptor);
    return nullptr;
  }
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) {
    ::close(descriptor);
    return nullptr;
  }
  const std::lock_guard lock(mutex);
  shared[address] = {bytes, descriptor};
  return address;
}

bool free_shared(void* address) {
  const std::lock_guard lock(mutex);
  const auto found = shared.find(address);
  if (found == shared.end()) {
    return false;
  }
  ::munmap(address, found->second.bytes);
  ::close(found->second.descriptor);
  shared.erase(found);
  return true;
}

int descriptor_of(void* address) {
  const std::lock_guard lock(mutex);
  const auto found = shared.find(address);
  return found == shared.end() ? -1 : found->second.descriptor;
}

int open_memory(const MemoryHandle& handle, void** base) {
  if (std::memcmp(handle.magic, kMagic, sizeof(kMagic)) != 0) {
    return kInvalidValue;
  }
  if (handle.refused != 0) {
    return static_cast<int>(handle.refused);
  }
  if (std::getenv("GRADSYNC_SIMT_NO_PEER") != nullptr && handle.device != this_device()) {
    return kPeerAccessUnsupported;
  }
  if (handle.pid == ::getpid()) {
    return kInvalidContext;
  }
  const std::string path = "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.descriptor);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return kInvalidHandle;
  }

  struct stat found {};

  const std::lock_guard lock(mutex);
  if (::fstat(fd, &found) != 0 || found.st_size == 0) {
    ::close(fd);
    return kInvalidHandle;
  }
  void*& place = places[{found.st_dev, found.st_ino}];
  if (place == nullptr) {
    const auto bytes = static_cast<std::size_t>(found.st_size);
    void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    place = mapped == MAP_FAILED ? nullptr : mapped;
    mappings[place].bytes = bytes;
  }
  ::close(fd);
  if (place == nullptr) {
    places.erase({found.st_dev, found.st_ino});
    return kMapFailed;
  }
  ++mappings[place].opened;
  *base = place;
  return 0;
}

int close_memory(void* base) {
  const std::lock_guard lock(mutex);
  const auto found = mappings.find(base);
  if (found == mappings.end()) {
    return kInvalidValue;
  }
  if (--found->second.opened == 0) {
    ::munmap(base, found->second.bytes);
    mappings.erase(found);
    std::erase_if(places, [base](const auto& place) { return place.second == base; });
  }
  return 0;
}

std::size_t mapped_bytes(unsigned long long base) {
  const std::lock_guard lock(mutex);
  const auto found = mappings.find(reinterpret_cast<void*>(base));
  return found == mappings.end() ? 0 : found->second.bytes;
}

}  // namespace simt
