#include "gpu/experiments/workers/host_flag.hpp"

#include "gpu/experiments/loads/probe_kernels.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <thread>

namespace gradsync::experiments {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr int kLaunches = 4096;  // more than a stream takes before a launch blocks

struct HostPage {
  std::atomic<std::uint64_t>* word;
  CUdeviceptr on_device;
};

const HostPage& host_page() {
  static const HostPage page = [] {
    void* at = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
      throw std::runtime_error("mmap failed");
    }
    must(cudaHostRegister(at, kPageBytes, cudaHostRegisterMapped), "cudaHostRegister");
    void* on_device = nullptr;
    must(cudaHostGetDevicePointer(&on_device, at, 0), "cudaHostGetDevicePointer");
    return HostPage{static_cast<std::atomic<std::uint64_t>*>(at), reinterpret_cast<CUdeviceptr>(on_device)};
  }();
  return page;
}

// Whether the thread beside has come back, which it may never do.
std::atomic<bool> ended{false};

/// What a trainer's thread may be in while its stream waits.
std::function<void()> work_of(const std::string& name, DeviceWorker& device) {
  const Stream& stream = device.stream();
  if (name == "idle") {
    return [] {};
  }
  if (name == "synchronize") {
    return [&stream] { (void)cudaStreamSynchronize(stream.get()); };
  }
  if (name == "launch") {
    return [&stream, at = device.words(1)] {
      for (int i = 0; i < kLaunches; ++i) {
        (void)fill_words(at, 2, 1, stream.get());
      }
    };
  }
  if (name == "allocate") {
    return [] {
      CUdeviceptr at = 0;
      (void)driver().memory_allocate(&at, std::size_t{64} << 20);
    };
  }
  if (name == "free") {
    return [at = device.words(1)] { (void)driver().memory_free(at); };
  }
  throw std::runtime_error("nothing is called '" + name + "'");
}

}  // namespace

void add_host_flag_handlers(Handlers& handlers, DeviceWorker& device) {
  handlers["host_wait"] = [&device](const Message& message) {
    std::function<void()> work = work_of(message.text("beside"), device);
    host_page().word->store(0);
    device.stream().wait_at_least(host_page().on_device, message.size("value"));
    ended = false;
    std::thread([work = std::move(work)] {
      (void)cudaSetDevice(0);
      work();
      ended = true;
    }).detach();
    return Message("ok");
  };
  handlers["host_store"] = [](const Message& message) {
    host_page().word->store(message.size("value"), std::memory_order_release);
    return Message("ok");
  };
  handlers["host_memop"] = [&device](const Message& message) {
    device.free_stream().write(host_page().on_device, message.size("value"));
    return Message("ok");
  };
  handlers["beside_ended"] = [](const Message&) { return Message("ok").set("ended", ended.load()); };
}

}  // namespace gradsync::experiments
