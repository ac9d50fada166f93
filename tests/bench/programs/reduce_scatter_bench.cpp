// Reduce-scatter on the host lane beside the barest loops this compiler makes for the same reads and writes,
// alternating in one run, with the same number of threads: float32, 4 ranks, tensors of 500,000 elements, the mean to
// the rank that holds a quarter of the rows (dim 0) or of the columns (dim 1). One JSON line per case: medians of wall
// time in milliseconds, and under `cpu` of the CPU time of all threads; `gb_per_s` counts what is read and written
// once: 4 inputs and the outputs, of which the norm is taken too.
//
//   reduce_scatter_bench [million elements = 100] [rounds = 15] [threads = 2]

#include "bench/programs/host_bench.hpp"
#include "device/host/host_lane.hpp"
#include "device/host/worker_pool.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>

namespace gradsync::device {
namespace {

constexpr std::size_t kRanks = 4;
constexpr std::size_t kElements = 500'000;  ///< of a tensor

/// A tensor of `rows` × `columns`; each rank gets `run` elements of every row, or together a quarter of the rows.
struct Shape {
  const char* name;
  std::size_t run;   ///< elements that lie together
  std::size_t runs;  ///< of one rank

  [[nodiscard]] std::size_t distance() const { return kRanks * run; }

  [[nodiscard]] std::size_t first(std::size_t rank) const { return rank * run; }
};

constexpr std::array<Shape, 3> kShapes = {
    {{"dim_0", kElements / kRanks, 1}, {"dim_1_of_1000", 250, 500}, {"dim_1_of_32", 8, kElements / 32}}};

void bare_rows(const float* const (&from)[kRanks], float* __restrict to, std::size_t first, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = (from[0][first + i] + from[1][first + i] + from[2][first + i] + from[3][first + i]) * 0.25F;
  }
}

/// One task per tensor. Ranks take turns in stretches that stay in the cache, as on the lane.
class Floor final : public PoolJob {
 public:
  Floor(const Shape& shape, const std::array<float*, kRanks>& memory, std::size_t tensors)
      : shape_(shape), memory_(memory), tensors_(tensors) {}

  void run_task(std::uint32_t task, std::size_t /*worker*/) noexcept override {
    const std::size_t input = task * kElements;
    const std::size_t output = tensors_ * kElements + task * (kElements / kRanks);
    const float* const from[kRanks] = {memory_[0] + input, memory_[1] + input, memory_[2] + input, memory_[3] + input};
    const std::size_t stretch = std::max<std::size_t>(1, 16'384 / shape_.run);
    for (std::size_t run = 0; run < shape_.runs; run += stretch) {
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        for (std::size_t r = run; r < std::min(run + stretch, shape_.runs); ++r) {
          bare_rows(
              from, memory_[rank] + output + r * shape_.run, shape_.first(rank) + r * shape_.distance(), shape_.run
          );
        }
      }
    }
  }

 private:
  const Shape& shape_;
  const std::array<float*, kRanks>& memory_;
  std::size_t tensors_;
};

LanePlan make_layout(const Shape& shape, std::size_t tensors) {
  LanePlan layout;
  layout.world_size = kRanks;
  layout.rank_buffers = {1, 2, 3, 4};
  layout.arenas.resize(1);
  layout.arena_of_rank.assign(kRanks, 0);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    layout.sums.push_back({{{{0, 0}, {1, 0}, {2, 0}, {3, 0}}, {{rank, 0}}}});
  }
  constexpr std::uint32_t kPerBucket = 12;  // 25 MB
  for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
    if (tensor % kPerBucket == 0) {
      layout.buckets.push_back({plan::DType::Float32, {}, kRanks});
    }
    layout.buckets.back().tensors.push_back(tensor);
    layout.tensors.push_back({tensor / kPerBucket, 0, -1, static_cast<std::uint32_t>(layout.parts.size()), kRanks, {}});
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      layout.parts.push_back({tensor, rank, kElements / kRanks, shape.first(rank), shape.run, {}});
      if (shape.runs != 1) {
        layout.parts.back().strides = {{shape.runs, shape.distance()}};
      }
    }
    layout.arenas[0].input.push_back(tensor * kElements * sizeof(float));
    layout.arenas[0].output.push_back((tensors * kElements + tensor * (kElements / kRanks)) * sizeof(float));
  }
  return layout;
}

void measure(const Shape& shape, std::size_t tensors, int rounds, int threads) {
  const LanePlan layout = make_layout(shape, tensors);
  const std::uint64_t bytes = tensors * (kElements + kElements / kRanks) * sizeof(float);
  Reports reports;
  HostLane lane({threads}, [&](LaneReport report) { reports.put(std::move(report)); });
  WorkerPool pool(threads, "floor");
  std::array<float*, kRanks> memory{};
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    Arena arena = make_arena(bytes);
    memory[rank] = static_cast<float*>(arena.data);
    std::minstd_rand random(static_cast<unsigned>(rank + 1));
    std::generate_n(memory[rank], tensors * kElements, [&] {
      return static_cast<float>(random() % 65536) * 0x1p-15F - 1.0F;
    });
    lane.submit(MapBuffer{rank + 1, std::move(arena.fd), bytes});
    (void)reports.take();
  }
  lane.submit(LoadPlan{1, layout});
  (void)reports.take();

  Samples floor;
  Samples ours;
  for (int round = 1; round <= rounds; ++round) {
    Floor job(shape, memory, tensors);
    Moment start;
    pool.run(static_cast<std::uint32_t>(tensors), job);
    floor.add_since(start);
    start = {};
    for (std::uint32_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
      lane.submit(ReduceBucket{1, static_cast<Tag>(round), bucket, {}, false});
    }
    for (std::size_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
      (void)reports.take();
    }
    ours.add_since(start);
  }
  const Summary a = summarise(ours);
  const Summary b = summarise(floor);
  const double moved_gb = static_cast<double>(tensors * kElements) * sizeof(float) * (kRanks + 1) * 1e-9;
  std::printf(
      "{\"name\": \"reduce_scatter_float32_%s\", \"unit\": \"ms\", \"ours\": %.2f, \"floor\": %.2f, "
      "\"floor_ratio\": %.3f, \"gb_per_s\": {\"ours\": %.2f, \"floor\": %.2f}, "
      "\"cpu\": {\"ours\": %.2f, \"floor\": %.2f, \"floor_ratio\": %.3f}, "
      "\"elements\": %zu, \"ranks\": %zu, \"threads\": %d, \"samples\": %d}\n",
      shape.name,
      a.wall,
      b.wall,
      a.wall / b.wall,
      moved_gb / a.wall * 1e3,
      moved_gb / b.wall * 1e3,
      a.cpu,
      b.cpu,
      a.cpu / b.cpu,
      tensors * kElements,
      kRanks,
      threads,
      rounds
  );
  std::fflush(stdout);
  for (float* arena : memory) {
    ::munmap(arena, bytes);
  }
}

}  // namespace
}  // namespace gradsync::device

int main(int argc, char** argv) {
  const auto argument = [&](int index, long otherwise) { return argc > index ? std::atol(argv[index]) : otherwise; };
  const auto tensors = static_cast<std::size_t>(argument(1, 100)) * 2;
  const int rounds = static_cast<int>(argument(2, 15));
  const int threads = static_cast<int>(argument(3, 2));
  for (const auto& shape : gradsync::device::kShapes) {
    gradsync::device::measure(shape, tensors, rounds, threads);
  }
}
