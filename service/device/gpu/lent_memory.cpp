#include "device/gpu/lent_memory.hpp"

namespace gradsync::device {

namespace {

constexpr std::size_t kLentHandleBytes = 64;

const char* uuid_or_first(const std::string& uuid) { return uuid.empty() ? nullptr : uuid.c_str(); }

}  // namespace

LentMemory::~LentMemory() {
  if (memory_ != nullptr) {
    (void)library_.free(memory_);
  }
}

GpuDescription LentMemory::describe() const {
  gradsync_gpu_description found{};
  library_.must(library_.describe(uuid_or_first(uuid_), &found), "asking for the GPU");
  return {found.name, found.compute_mode, found.capability, found.memory_bytes};
}

std::string LentMemory::lend(const std::string& content) {
  library_.must(library_.open(uuid_or_first(uuid_)), "opening the GPU");
  library_.must(library_.allocate(kBytes, &memory_), "allocating memory");
  library_.must(library_.write(memory_, content.data(), content.size()), "writing memory");
  std::string handle(kLentHandleBytes, '\0');
  library_.must(library_.export_memory(memory_, handle.data()), "exporting memory");
  return handle;
}

std::string LentMemory::read(std::size_t bytes) const {
  std::string content(bytes, '\0');
  library_.must(library_.read(content.data(), memory_, bytes), "reading memory");
  return content;
}

}  // namespace gradsync::device
