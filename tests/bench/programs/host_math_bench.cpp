// The host lane's two passes beside the barest loops this compiler makes for the same reads and writes, alternating in
// one run, with the same number of threads. Before both, two threads write the ranks' gradients. 2 ranks, half as many
// elements for float64. One JSON line per dtype and pass: medians of wall time in milliseconds, and under `cpu` of the
// CPU time of all threads; `floor_ratio` is ours ÷ floor.
//
//   host_math_bench [million elements = 100] [rounds = 15] [threads = 2] [tensors = 200] [dtype]

#include "bench/programs/host_bench.hpp"
#include "device/host/host_lane.hpp"
#include "device/host/worker_pool.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>

namespace gradsync::device {
namespace {

float widen(float value) { return value; }

double widen(double value) { return value; }

float widen(std::uint16_t value) { return std::bit_cast<float>(std::uint32_t{value} << 16); }

void narrow(float value, float& out) { out = value; }

void narrow(double value, double& out) { out = value; }

void narrow(float value, std::uint16_t& out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  out = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <typename T>
void bare_reduce(T* __restrict a, T* __restrict b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T stored;
    narrow((widen(a[i]) + widen(b[i])) * 0.5F, stored);
    a[i] = stored;
    b[i] = stored;
  }
}

template <typename T>
void bare_scale(T* __restrict a, T* __restrict b, std::size_t count, float by) {
  for (std::size_t i = 0; i < count; ++i) {
    narrow(widen(a[i]) * by, a[i]);
    narrow(widen(b[i]) * by, b[i]);
  }
}

template <typename T>
class Floor final : public PoolJob {
 public:
  Floor(T* a, T* b, std::size_t count, bool reduces) : a_(a), b_(b), count_(count), reduces_(reduces) {}

  void run_task(std::uint32_t task, std::size_t /*worker*/) noexcept override {
    const std::size_t from = task * kTask;
    const std::size_t count = std::min(kTask, count_ - from);
    if (reduces_) {
      bare_reduce(a_ + from, b_ + from, count);
    } else {
      bare_scale(a_ + from, b_ + from, count, 0.999F);
    }
  }

  [[nodiscard]] std::uint32_t tasks() const { return static_cast<std::uint32_t>((count_ + kTask - 1) / kTask); }

 private:
  static constexpr std::size_t kTask = 1U << 17;
  T* a_;
  T* b_;
  std::size_t count_;
  bool reduces_;
};

/// Every rank's gradients as a backward leaves them: written by a thread of its own.
template <typename T>
class Backward final : public PoolJob {
 public:
  Backward(T* const (&memory)[2], std::size_t count) : memory_{memory[0], memory[1]}, count_(count) {
    std::minstd_rand random(1);
    for (std::size_t i = 0; i < kBlock; ++i) {
      const float value = static_cast<float>(random() % 65536) * 0x1p-15F - 1.0F;
      narrow(value, values_[0][i]);
      narrow(0.5F * value, values_[1][i]);
    }
  }

  void run_task(std::uint32_t rank, std::size_t /*worker*/) noexcept override {
    for (std::size_t at = 0; at < count_; at += kBlock) {
      std::copy_n(values_[rank].data(), std::min(kBlock, count_ - at), memory_[rank] + at);
    }
  }

 private:
  static constexpr std::size_t kBlock = 4096;
  T* memory_[2];
  std::size_t count_;
  std::array<std::array<T, kBlock>, 2> values_;
};

LanePlan make_layout(plan::DType dtype, std::size_t count, std::size_t tensors) {
  LanePlan layout;
  layout.world_size = 2;
  layout.rank_buffers = {1, 2};
  layout.arenas.resize(1);
  layout.arena_of_rank = {0, 0};
  layout.sums = {{{{{0, 0}, {1, 0}}, {{0, 0}, {1, 0}}}}};
  const std::uint64_t numel = count / tensors;
  const std::uint64_t width = plan::size_of(dtype);
  std::uint64_t bucket_bytes = 0;
  for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
    if (layout.buckets.empty() || bucket_bytes + numel * width > 25U << 20) {
      layout.buckets.push_back({dtype, {}, 2.0});
      bucket_bytes = 0;
    }
    bucket_bytes += numel * width;
    layout.buckets.back().tensors.push_back(tensor);
    layout.tensors.push_back({static_cast<std::uint32_t>(layout.buckets.size() - 1), 0, -1, tensor, 1, {}});
    layout.parts.push_back({tensor, 0, numel, 0, numel, {}});
    layout.arenas[0].input.push_back(tensor * plan::align_up(numel * width));
  }
  layout.arenas[0].output = layout.arenas[0].input;
  return layout;
}

template <typename T>
void measure(plan::DType dtype, std::size_t count, std::size_t tensors, int rounds, int threads) {
  const LanePlan layout = make_layout(dtype, count, tensors);
  const std::uint64_t bytes = layout.arenas[0].input.back() + plan::align_up(layout.parts.back().elements * sizeof(T));
  Arena arenas[2] = {make_arena(bytes), make_arena(bytes)};
  T* memory[2] = {static_cast<T*>(arenas[0].data), static_cast<T*>(arenas[1].data)};
  Reports reports;
  HostLane lane({threads}, [&](LaneReport report) { reports.put(std::move(report)); });
  WorkerPool pool(threads, "floor");
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    lane.submit(MapBuffer{rank + 1, std::move(arenas[rank].fd), bytes});
    (void)reports.take();
  }
  lane.submit(LoadPlan{1, layout});
  (void)reports.take();

  const std::size_t elements = bytes / sizeof(T);
  Backward<T> backward(memory, elements);
  Samples floor_reduce;
  Samples floor_scale;
  Samples our_reduce;
  Samples our_scale;
  for (int round = 1; round <= rounds; ++round) {
    Floor<T> reduce(memory[0], memory[1], elements, true);
    Floor<T> scale(memory[0], memory[1], elements, false);
    pool.run(2, backward);
    Moment start;
    pool.run(reduce.tasks(), reduce);
    floor_reduce.add_since(start);
    start = {};
    pool.run(scale.tasks(), scale);
    floor_scale.add_since(start);
    pool.run(2, backward);
    start = {};
    for (std::uint32_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
      lane.submit(ReduceBucket{1, static_cast<Tag>(round), bucket, {}, false});
    }
    for (std::size_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
      (void)reports.take();
    }
    our_reduce.add_since(start);
    start = {};
    // A limit far above the norm and a loss scale: the pass is made.
    lane.submit(FinishStep{1, static_cast<Tag>(round), 1.001, {plan::ClipRule{1e30}}, true});
    (void)reports.take();
    our_scale.add_since(start);
  }
  const auto print = [&](const char* pass, Summary ours, Summary floor) {
    std::printf(
        "{\"name\": \"host_math_%s_%s\", \"unit\": \"ms\", \"ours\": %.3f, \"floor\": %.3f, \"floor_ratio\": %.3f, "
        "\"cpu\": {\"ours\": %.3f, \"floor\": %.3f, \"floor_ratio\": %.3f}, "
        "\"elements\": %zu, \"tensors\": %zu, \"ranks\": 2, \"threads\": %d, \"samples\": %d}\n",
        pass,
        std::string(plan::name_of(dtype)).c_str(),
        ours.wall,
        floor.wall,
        ours.wall / floor.wall,
        ours.cpu,
        floor.cpu,
        ours.cpu / floor.cpu,
        elements,
        tensors,
        threads,
        rounds
    );
  };
  const Summary reduce[2] = {summarise(our_reduce), summarise(floor_reduce)};
  const Summary scale[2] = {summarise(our_scale), summarise(floor_scale)};
  print("reduce", reduce[0], reduce[1]);
  print("scale", scale[0], scale[1]);
  print("step", reduce[0] + scale[0], reduce[1] + scale[1]);
  std::fflush(stdout);
  ::munmap(arenas[0].data, bytes);
  ::munmap(arenas[1].data, bytes);
}

}  // namespace
}  // namespace gradsync::device

int main(int argc, char** argv) {
  const auto argument = [&](int index, long otherwise) { return argc > index ? std::atol(argv[index]) : otherwise; };
  const auto elements = static_cast<std::size_t>(argument(1, 100)) * 1'000'000;
  const int rounds = static_cast<int>(argument(2, 15));
  const int threads = static_cast<int>(argument(3, 2));
  const auto tensors = static_cast<std::size_t>(argument(4, 200));
  const auto wanted = [&](const char* dtype) { return argc <= 5 || std::string(argv[5]) == dtype; };
  if (wanted("float32")) {
    gradsync::device::measure<float>(gradsync::plan::DType::Float32, elements, tensors, rounds, threads);
  }
  if (wanted("bfloat16")) {
    gradsync::device::measure<std::uint16_t>(gradsync::plan::DType::BFloat16, elements, tensors, rounds, threads);
  }
  if (wanted("float64")) {
    gradsync::device::measure<double>(gradsync::plan::DType::Float64, elements / 2, tensors, rounds, threads);
  }
}
