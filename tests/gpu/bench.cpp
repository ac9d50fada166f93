// gpu_bench [--case a,b] [--samples N] [--shrink N] [--once] [--json FILE]
// Times the passes against a device-to-device copy of the same bytes, in turns in one run. `--once` runs every pass of
// each case once and times nothing: for a profiler. With torch beside it: bench_torch.py.

#include "gpu/bench_cases.hpp"
#include "gpu/bench_results.hpp"
#include "gpu/reduce_step.hpp"
#include "kernels/tables/copy_table.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <stdexcept>

namespace gradsync::kernels {
namespace {

struct BenchOptions {
  std::string cases = "a,b,c,d,m,e,f,r";
  int samples = 15;
  std::uint64_t shrink = 1;
  bool once = false;
  std::string json;
};

BenchOptions parse(int count, char** words) {
  BenchOptions options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&] {
      if (++i >= count) {
        throw std::invalid_argument(word + " needs a value");
      }
      return std::string(words[i]);
    };
    if (word == "--case") {
      options.cases = value();
    } else if (word == "--samples") {
      options.samples = std::stoi(value());
    } else if (word == "--shrink") {
      options.shrink = std::stoull(value());
    } else if (word == "--json") {
      options.json = value();
    } else if (word == "--once") {
      options.once = true;
    } else {
      throw std::invalid_argument("unknown option " + word + " (--case --samples --shrink --once --json)");
    }
  }
  return options;
}

class Stopwatch {
 public:
  Stopwatch() {
    must(cudaEventCreate(&start_), "cudaEventCreate");
    must(cudaEventCreate(&stop_), "cudaEventCreate");
  }

  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  ~Stopwatch() {
    (void)cudaEventDestroy(start_);
    (void)cudaEventDestroy(stop_);
  }

  /// Microseconds of one of `times` runs in a row.
  double time(int times, const std::function<void()>& enqueue) const {
    must(cudaEventRecord(start_, nullptr), "cudaEventRecord");
    for (int i = 0; i < times; ++i) {
      enqueue();
    }
    must(cudaEventRecord(stop_, nullptr), "cudaEventRecord");
    must(cudaEventSynchronize(stop_), "cudaEventSynchronize");
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, start_, stop_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e3 / times;
  }

 private:
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

struct Timed {
  std::string name;
  double floor_copies;  ///< its floor in times of the copy, which moves two bytes per byte of the tensors
  std::function<void()> enqueue;
};

// A loss scale this close to 1 makes the scale pass run without changing what the next sample reads.
constexpr double kAlmostOne = 1.0000002;

std::vector<BenchResult> run_case(const BenchCase& bench, const BenchOptions& options) {
  const BenchMemory memory(bench);
  const ClipStep step(memory.tensors(), {1e30, arithmetic::ClipMode::Strict, arithmetic::NormType::Float32});
  const double bytes = static_cast<double>(bytes_of(bench));
  std::vector<CopyPart> parts;
  const DeviceMemory bucket(memory.tensors().size() * 512 + static_cast<std::size_t>(bytes));
  std::uint64_t place = 0;
  for (const PlacedTensor& tensor : memory.tensors()) {
    CopyPart part;
    part.source = tensor.address;
    part.destination = bucket.get() + place;
    part.source_dtype = part.destination_dtype = bench.dtype;
    part.row_count = tensor.count;
    part.divisor = 8;
    parts.push_back(part);
    place += (tensor.count * size_of(bench.dtype) + 15) / 16 * 16;
  }
  const CopyTable pack(parts);
  const DeviceMemory pack_image(pack.image().size());
  pack_image.upload(pack.image().data(), pack.image().size());

  const std::vector<Timed> timed{
      {"norm", 0.5, [&] { step.enqueue_measure(nullptr); }},
      {"norm_fingerprint", 0.5, [&] { step.enqueue_measure(nullptr, true); }},
      {"norm_clip_unclipped", 0.5, [&] { step.enqueue_measure(nullptr), step.enqueue_clip(nullptr); }},
      {"norm_clip_clipped", 1.5, [&] { step.enqueue_measure(nullptr), step.enqueue_clip(nullptr, kAlmostOne); }},
      {"pack", 1.0, [&] { must(copy(pack.at(pack_image.get()), nullptr), "copy"); }},
  };
  std::vector<BenchResult> results;
  for (const Timed& one : timed) {
    results.push_back({"gpu_" + bench.name + "_" + one.name, bench.what, {}, {}, one.floor_copies * 2 * bytes});
    one.enqueue();
  }
  must(cudaDeviceSynchronize(), "warming up");
  if (options.once) {
    return {};
  }
  const Stopwatch stopwatch;
  const int times = bytes < 1e9 ? 20 : 4;
  for (int sample = 0; sample < options.samples; ++sample) {
    for (std::size_t i = 0; i < timed.size(); ++i) {
      const double copied =
          stopwatch.time(times, [&] { memory.enqueue_copy(nullptr); }) * bytes / memory.copied_bytes();
      results[i].ours.push_back(stopwatch.time(times, timed[i].enqueue));
      results[i].floor.push_back(copied * timed[i].floor_copies);
    }
  }
  return results;
}

/// Case r: buckets that ranks on one GPU sum in place. The floor of one read and one write of each copy of the bucket.
std::vector<BenchResult> run_reductions(const BenchOptions& options) {
  std::vector<BenchResult> results;
  for (const DType dtype : {DType::BFloat16, DType::Float32}) {
    for (const std::uint32_t ranks : {1U, 2U, 4U, 8U}) {
      for (const std::uint64_t megabytes : {25U, 1'000U}) {
        const std::uint64_t elements = megabytes * 1'000'000 / size_of(dtype) / options.shrink;
        const ReduceStep step(dtype, ranks, elements);
        const std::string format = dtype == DType::BFloat16 ? "bf16" : "fp32";
        const std::string size = std::to_string(megabytes) + "mb";
        BenchResult result;
        result.name = "gpu_r_" + format + "_" + std::to_string(ranks) + "_ranks_" + size;
        result.what = "a bucket of " + size + " summed by " + std::to_string(ranks) + " ranks in place";
        result.moved_bytes = step.moved_bytes();
        step.enqueue(nullptr);
        must(cudaDeviceSynchronize(), "warming up");
        const Stopwatch stopwatch;
        const int times = megabytes < 100 ? 20 : 4;
        for (int sample = 0; sample < (options.once ? 0 : options.samples); ++sample) {
          const double copied = stopwatch.time(times, [&] { step.enqueue_copy(nullptr); });
          result.ours.push_back(stopwatch.time(times, [&] { step.enqueue(nullptr); }));
          result.floor.push_back(copied * step.moved_bytes() / step.copied_bytes());
        }
        if (!options.once) {
          results.push_back(std::move(result));
        }
      }
    }
  }
  return results;
}

std::string machine() {
  cudaDeviceProp device{};
  int driver = 0;
  must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  must(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  return "{\"gpu\": \"" + std::string(device.name) + "\", \"sm\": " + std::to_string(device.major * 10 + device.minor) +
         ", \"multiprocessors\": " + std::to_string(device.multiProcessorCount) +
         ", \"l2_bytes\": " + std::to_string(device.l2CacheSize) + ", \"driver_cuda\": " + std::to_string(driver) + "}";
}

int run(const BenchOptions& options) {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0) {
    std::cerr << "gpu_bench: no CUDA device (" << cudaGetErrorString(error) << "); nothing was measured\n";
    return 69;
  }
  std::vector<BenchResult> results;
  // After each case: what was measured survives a run that is ended early.
  const auto keep = [&](std::vector<BenchResult> of_case) {
    std::ranges::move(of_case, std::back_inserter(results));
    if (!options.json.empty()) {
      std::ofstream file(options.json);
      write_results(file, results, machine());
      if (!file) {
        throw std::runtime_error("cannot write " + options.json);
      }
    }
  };
  for (const BenchCase& bench : bench_cases(options.shrink)) {
    if (options.cases.find(bench.name) != std::string::npos) {
      keep(run_case(bench, options));
    }
  }
  if (options.cases.find('r') != std::string::npos) {
    keep(run_reductions(options));
  }
  print_results(std::cout, results);
  return 0;
}

}  // namespace
}  // namespace gradsync::kernels

int main(int count, char** words) {
  try {
    return gradsync::kernels::run(gradsync::kernels::parse(count, words));
  } catch (const std::exception& error) {
    std::cerr << "gpu_bench: " << error.what() << '\n';
    return 1;
  }
}
