#include "exported_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace simt {

namespace {

constexpr char kMagic[8] = {'e', 'm', 'u', 'l', 'a', 't', 'e', 'd'};

enum CudaError : int { kInvalidValue = 1, kInvalidContext = 201, kMapFailed = 205, kInvalidHandle = 400 };

struct Mapping {
  std::size_t bytes = 0;
  int opened = 0;
};

std::mutex mutex;
std::map<void*, Mapping> mappings;
std::map<std::pair<dev_t, ino_t>, void*> places;  // the same memory has one address, however often it is opened

}  // namespace

MemoryHandle handle_of(int descriptor) {
  MemoryHandle handle{};
  std::memcpy(handle.magic, kMagic, sizeof(kMagic));
  handle.pid = ::getpid();
  handle.descriptor = descriptor;
  return handle;
}

int open_memory(const MemoryHandle& handle, void** base) {
  if (std::memcmp(handle.magic, kMagic, sizeof(kMagic)) != 0) {
    return kInvalidValue;
  }
  if (handle.refused != 0) {
    return static_cast<int>(handle.refused);
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
