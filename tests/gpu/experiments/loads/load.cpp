#include "gpu/experiments/loads/load.hpp"

#include "gpu/experiments/loads/probe_kernels.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <vector>

namespace gradsync::experiments {

namespace {

constexpr double kQueuedUs = 20e3;
constexpr std::size_t kLeastQueued = 2;
constexpr std::size_t kMostQueued = 512;  // CUDA queues about a thousand launches, then a launch waits

}  // namespace

Load::Load(const Message& message, CUdeviceptr block) : stream_(static_cast<int>(message.integer("priority"))) {
  const std::string& kind = message.text("kind");
  if (kind == "matrix") {
    product_ = std::make_unique<MatrixProduct>(static_cast<int>(message.integer("n")));
    how_ = product_->how();
    unit_ = product_->operations() * 1e-12;
    piece_ = [this] { product_->enqueue(stream_); };
    queued_ = pieces_to_queue();
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
  queued_ = pieces_to_queue();
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

std::size_t Load::pieces_to_queue() const {
  constexpr int kTimed = 3;
  piece_();  // the first one loads and allocates
  stream_.synchronize();
  const double began = now_us();
  for (int piece = 0; piece < kTimed; ++piece) {
    piece_();
  }
  stream_.synchronize();
  const double each_us = std::max((now_us() - began) / kTimed, 1.0);
  // One more than that is work: it may be done already.
  const auto pieces = static_cast<std::size_t>(std::ceil(kQueuedUs / each_us)) + 1;
  return std::clamp(pieces, kLeastQueued, kMostQueued);
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
    std::vector<std::unique_ptr<Event>> ends;
    for (std::size_t piece = 0; !stopping_; ++piece) {
      if (piece < queued_) {
        ends.push_back(std::make_unique<Event>(cudaEventDisableTiming));
      } else {
        while (!ends[piece % queued_]->done()) {
          (void)usleep(20);
        }
        ++done_;
      }
      piece_();
      ends[piece % queued_]->record(stream_);
    }
    stream_.synchronize();
  } catch (const std::exception& error) {
    failure_ = error.what();
    failed_ = true;
  }
}

}  // namespace gradsync::experiments
