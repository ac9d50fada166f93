#include "gpu/experiments/load.hpp"

#include "gpu/experiments/probe_kernels.hpp"

#include <unistd.h>

#include <array>
#include <stdexcept>

namespace gradsync::experiments {

Load::Load(const Message& message, CUdeviceptr block) : stream_(static_cast<int>(message.integer("priority"))) {
  const std::string& kind = message.text("kind");
  if (kind == "matrix") {
    product_ = std::make_unique<MatrixProduct>(static_cast<int>(message.integer("n")));
    how_ = product_->how();
    unit_ = product_->operations() * 1e-12;
    piece_ = [this] { product_->enqueue(stream_); };
    return;
  }
  const std::size_t bytes = message.size("bytes");
  if (block == 0) {
    must(driver().memory_allocate(&own_, 2 * bytes), "cuMemAlloc");
  }
  const CUdeviceptr from = block == 0 ? own_ : block;
  must(fill_ramp(from, bytes / 4, 1, 0.5F, stream_.get()), "fill_ramp");
  stream_.synchronize();
  piece_ = piece_of(kind, from, bytes);
}

Load::~Load() {
  stopping_ = true;
  if (thread_.joinable()) {
    thread_.join();
  }
  if (own_ != 0) {
    (void)driver().memory_free(own_);
  }
}

std::function<void()> Load::piece_of(const std::string& kind, CUdeviceptr from, std::size_t bytes) {
  const CUdeviceptr to = from + bytes;
  auto* const device = reinterpret_cast<void*>(from);
  if (kind == "memory") {
    unit_ = 2e-9 * static_cast<double>(bytes);
    return [this, from, to, bytes] { must(double_floats(from, to, bytes / 4, stream_.get()), "double_floats"); };
  }
  if (kind == "copy_device") {
    unit_ = 2e-9 * static_cast<double>(bytes);
    return copy(reinterpret_cast<void*>(to), device, bytes, cudaMemcpyDeviceToDevice);
  }
  if (kind != "copy_to_device" && kind != "copy_to_host") {
    throw std::runtime_error("no load '" + kind + "'");
  }
  unit_ = 1e-9 * static_cast<double>(bytes);
  void* host = nullptr;
  must(cudaMallocHost(&host, bytes), "cudaMallocHost");
  return kind == "copy_to_device" ? copy(device, host, bytes, cudaMemcpyHostToDevice)
                                  : copy(host, device, bytes, cudaMemcpyDeviceToHost);
}

std::function<void()> Load::copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return
      [this, to, from, bytes, kind] { must(cudaMemcpyAsync(to, from, bytes, kind, stream_.get()), "cudaMemcpyAsync"); };
}

void Load::begin() {
  thread_ = std::thread([this] { run(); });
}

double Load::rate() {
  const std::int64_t done = done_.load();
  const double now = now_us();
  const double rate = static_cast<double>(done - done_before_) * unit_ / ((now - at_us_) * 1e-6);
  done_before_ = done;
  at_us_ = now;
  if (failed_) {
    throw std::runtime_error(failure_);
  }
  return rate;
}

void Load::run() {
  try {
    must(cudaSetDevice(0), "cudaSetDevice");
    const std::array<Event, 2> ends{Event(cudaEventDisableTiming), Event(cudaEventDisableTiming)};
    for (std::size_t piece = 0; !stopping_; ++piece) {
      piece_();
      ends[piece % 2].record(stream_);
      if (piece > 0) {
        const Event& before = ends[(piece + 1) % 2];
        while (!before.done()) {
          (void)usleep(20);
        }
        ++done_;
      }
    }
    stream_.synchronize();
  } catch (const std::exception& error) {
    failure_ = error.what();
    failed_ = true;
  }
}

}  // namespace gradsync::experiments
