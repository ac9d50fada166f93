// Preloaded into the daemon by the bench `steady_faults`: counts each thread's calls of the heap in a file that the
// bench maps as well. What allocates goes on to glibc, under its own names.
//
//   BENCH_ALLOCATIONS=FILE LD_PRELOAD=libbench_allocations.so gradsyncd …
//
// The file is an array of {thread id, allocations}, one per thread, in the order in which they first allocated.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
}

namespace {

constexpr std::size_t kThreads = 64;

struct Row {
  std::atomic<std::uint64_t> thread;
  std::atomic<std::uint64_t> allocations;
};

Row* rows = nullptr;
std::atomic<std::size_t> used{0};
thread_local Row* own __attribute__((tls_model("initial-exec"))) = nullptr;

void count() {
  if (rows == nullptr) {
    return;  // before main, or without a file
  }
  if (own == nullptr) {
    const std::size_t index = used.fetch_add(1);
    own = &rows[index < kThreads ? index : kThreads - 1];
    own->thread = static_cast<std::uint64_t>(::gettid());
  }
  own->allocations.fetch_add(1, std::memory_order_relaxed);
}

__attribute__((constructor)) void open_file() {
  const char* path = std::getenv("BENCH_ALLOCATIONS");
  const int fd = path == nullptr ? -1 : ::open(path, O_RDWR | O_CLOEXEC);
  if (fd >= 0) {
    void* memory = ::mmap(nullptr, kThreads * sizeof(Row), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    rows = memory == MAP_FAILED ? nullptr : static_cast<Row*>(memory);
    ::close(fd);
  }
}

}  // namespace

extern "C" {

void* malloc(std::size_t size) {
  count();
  return __libc_malloc(size);
}

void* calloc(std::size_t items, std::size_t size) {
  count();
  return __libc_calloc(items, size);
}

void* realloc(void* memory, std::size_t size) {
  count();
  return __libc_realloc(memory, size);
}

void* memalign(std::size_t alignment, std::size_t size) {
  count();
  return __libc_memalign(alignment, size);
}

void* aligned_alloc(std::size_t alignment, std::size_t size) { return memalign(alignment, size); }

int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  *memory = memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
}
