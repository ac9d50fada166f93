// The C interface of a worker: its device, tables in device memory, the passes of a bucket, and what comes back of
// them.

#include "kernels/kernels.hpp"
#include "kernels/library/device_memory.cuh"
#include "kernels/library/gpu_calls.cuh"
#include "kernels/library/gradsync_gpu.h"
#include "kernels/tables/scratch.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <cuda_runtime.h>
#include <stdexcept>
#include <string>
#include <vector>

using gradsync::kernels::align_up;
using gradsync::kernels::DeviceMemory;
using gradsync::kernels::download;
using gradsync::kernels::DType;
using gradsync::kernels::guarded;
using gradsync::kernels::kDTypes;
using gradsync::kernels::last_failure;
using gradsync::kernels::must;
using gradsync::kernels::PlaceRange;
using gradsync::kernels::ReduceBucket;
using gradsync::kernels::ReduceChunk;
using gradsync::kernels::ReducedChunk;
using gradsync::kernels::ReduceMemory;
using gradsync::kernels::ReducePart;
using gradsync::kernels::ReduceSum;
using gradsync::kernels::ReduceTable;
using gradsync::kernels::upload;
using gradsync::kernels::wait;

inline namespace of_library_gpu {

template <typename T>
void check_range(const T* list, std::uint64_t first, std::uint64_t count, std::uint64_t length, const char* what) {
  if (first + count > length || (list == nullptr && count != 0)) {
    throw std::invalid_argument(std::string(what) + " reach beyond their list");
  }
}

ReduceTable table_of(const gradsync_reduce_plan& plan) {
  std::vector<ReducePart> parts(plan.part_count);
  for (std::uint32_t part = 0; part < plan.part_count; ++part) {
    const gradsync_reduce_part& given = plan.parts[part];
    check_range(plan.sums, given.first_sum, given.sums, plan.sum_count, "the sums of a part");
    for (std::uint32_t at = 0; at < given.sums; ++at) {
      const gradsync_reduce_sum& sum = plan.sums[given.first_sum + at];
      check_range(plan.members, sum.first_source, sum.sources, plan.member_count, "the sources of a sum");
      check_range(
          plan.members, sum.first_destination, sum.destinations, plan.member_count, "the destinations of a sum"
      );
      const std::uint32_t* sources = plan.members + sum.first_source;
      const std::uint32_t* destinations = plan.members + sum.first_destination;
      parts[part].sums.push_back({{sources, sources + sum.sources}, {destinations, destinations + sum.destinations}});
    }
  }
  std::vector<ReduceChunk> chunks;
  for (std::uint32_t i = 0; i < plan.chunk_count; ++i) {
    const gradsync_reduce_chunk& chunk = plan.chunks[i];
    chunks.push_back({chunk.source, chunk.first, chunk.distance, chunk.run, chunk.runs, chunk.part});
  }
  std::vector<ReduceBucket> buckets;
  for (std::uint32_t i = 0; i < plan.bucket_count; ++i) {
    const gradsync_reduce_bucket& bucket = plan.buckets[i];
    for (const std::uint32_t dtype : {bucket.dtype, bucket.sources}) {
      if (dtype >= kDTypes) {
        throw std::invalid_argument(
            "buckets[" + std::to_string(i) + "] has dtypes " + std::to_string(bucket.dtype) + " and " +
            std::to_string(bucket.sources) + ", not of 0 to 3"
        );
      }
    }
    buckets.push_back(
        {static_cast<DType>(bucket.dtype),
         bucket.divisor,
         bucket.first_chunk,
         bucket.chunks,
         static_cast<DType>(bucket.sources),
         bucket.minus_zeros != 0}
    );
  }
  return {plan.places, parts, chunks, buckets};
}

/// Whether `reduce` sums these powers itself.
bool in_one_pass(double p) { return p == 1 || p == 2 || !std::isfinite(p); }

std::string uuid_of(const cudaUUID_t& uuid) {
  static const char* const kDigits = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) {
      text += '-';
    }
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

int device_with(const char* uuid) {
  int devices = 0;
  must(cudaGetDeviceCount(&devices), "counting devices");
  std::string seen;
  for (int device = 0; device < devices; ++device) {
    cudaDeviceProp properties{};
    must(cudaGetDeviceProperties(&properties, device), "reading a device's properties");
    const std::string name = uuid_of(properties.uuid);
    if (uuid == nullptr || name == uuid) {
      return device;
    }
    seen += (seen.empty() ? "" : ", ") + name;
  }
  throw std::runtime_error(
      "no device " + std::string(uuid == nullptr ? "" : uuid) + " is visible here" +
      (seen.empty() ? "" : "; there are " + seen)
  );
}

}  // namespace of_library_gpu

struct gradsync_reduction {
  explicit gradsync_reduction(ReduceTable given)
      : table(std::move(given)), memory(std::max<std::size_t>(lay_out(), 1)) {
    upload(memory.at(0), table.image().data(), table.image().size(), "copying the table");
    must(cudaMemsetAsync(memory.at(nonfinite), 0, scales - nonfinite, nullptr), "clearing the findings");
    wait("copying the table");
  }

  /// Memory as the passes see it, with the addresses of this one.
  [[nodiscard]] ReduceMemory place(const std::uint64_t* list, std::uint32_t number) const {
    if (list == nullptr && table.places() != 0) {
      throw std::invalid_argument("addresses is null");
    }
    const PlaceRange range = table.places_of(number);
    upload(
        memory.at(addresses) + range.begin * sizeof(std::uint64_t),
        list + range.begin,
        (range.end - range.begin) * sizeof(std::uint64_t),
        "copying the addresses"
    );
    return {
        memory.at(0),
        reinterpret_cast<const std::uint64_t*>(memory.at(addresses)),
        reinterpret_cast<ReducedChunk*>(memory.at(chunks)),
        reinterpret_cast<std::uint64_t*>(memory.at(nonfinite)),
        reinterpret_cast<std::uint32_t*>(memory.at(differs))};
  }

  [[nodiscard]] const ReduceBucket& bucket(std::uint32_t index) const {
    if (index >= table.buckets().size()) {
      throw std::invalid_argument(
          "bucket is " + std::to_string(index) + ", there are " + std::to_string(table.buckets().size())
      );
    }
    return table.buckets()[index];
  }

  /// By chunk, of the second pass.
  [[nodiscard]] double* scales_at() const { return reinterpret_cast<double*>(memory.at(scales)); }

  /// The results of a bucket's chunks, on the host.
  [[nodiscard]] std::vector<ReducedChunk> results(const ReduceBucket& of) const {
    std::vector<ReducedChunk> found(of.chunks);
    download(
        found.data(),
        memory.at(chunks) + of.first_chunk * sizeof(ReducedChunk),
        of.chunks * sizeof(ReducedChunk),
        "copying the statistics"
    );
    wait("reducing");
    return found;
  }

  /// A list of findings, which is cleared for the next pass.
  void take(void* to, std::size_t offset, std::size_t bytes) const {
    download(to, memory.at(offset), bytes, "copying the findings");
    must(cudaMemsetAsync(memory.at(offset), 0, bytes, nullptr), "clearing the findings");
    wait("copying the findings");
  }

  std::size_t addresses = 0;
  std::size_t chunks = 0;
  std::size_t nonfinite = 0;
  std::size_t differs = 0;
  std::size_t scales = 0;
  ReduceTable table;
  DeviceMemory memory;

 private:
  std::size_t lay_out() {
    std::size_t bytes = align_up(table.image().size(), 256);
    const auto place_list = [&bytes](std::size_t size) {
      const std::size_t offset = bytes;
      bytes = align_up(bytes + size, 256);
      return offset;
    };
    addresses = place_list(table.places() * sizeof(std::uint64_t));
    chunks = place_list(table.chunks() * sizeof(ReducedChunk));
    nonfinite = place_list(table.places() * sizeof(std::uint64_t));
    differs = place_list(table.sums() * sizeof(std::uint32_t));
    scales = place_list(table.chunks() * sizeof(double));
    return bytes;
  }
};

GRADSYNC_EXPORT uint32_t gradsync_gpu_abi(void) { return GRADSYNC_GPU_ABI; }

GRADSYNC_EXPORT const char* gradsync_gpu_error(void) { return last_failure().words.c_str(); }

GRADSYNC_EXPORT int gradsync_gpu_error_code(void) { return last_failure().code; }

GRADSYNC_EXPORT int gradsync_gpu_open(const char* uuid) {
  return guarded([&] { must(cudaSetDevice(device_with(uuid)), "taking the device"); });
}

GRADSYNC_EXPORT int gradsync_gpu_describe(const char* uuid, gradsync_gpu_description* description) {
  return guarded([&] {
    const int device = device_with(uuid);
    cudaDeviceProp properties{};
    must(cudaGetDeviceProperties(&properties, device), "reading a device's properties");
    *description = {};
    static_assert(sizeof(properties.name) == sizeof(description->name));
    std::memcpy(description->name, properties.name, sizeof(description->name));
    description->memory_bytes = properties.totalGlobalMem;
    int major = 0;
    int minor = 0;
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "finding what the device can");
    must(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "finding what the device can");
    description->capability = 10 * major + minor;
    must(
        cudaDeviceGetAttribute(&description->compute_mode, cudaDevAttrComputeMode, device), "finding the compute mode"
    );
  });
}

GRADSYNC_EXPORT gradsync_reduction* gradsync_reduction_create(const gradsync_reduce_plan* plan) {
  gradsync_reduction* reduction = nullptr;
  guarded([&] {
    if (plan == nullptr) {
      throw std::invalid_argument("plan is null");
    }
    reduction = new gradsync_reduction(table_of(*plan));
  });
  return reduction;
}

GRADSYNC_EXPORT void gradsync_reduction_destroy(gradsync_reduction* reduction) { delete reduction; }

GRADSYNC_EXPORT int gradsync_reduce(
    gradsync_reduction* reduction,
    const uint64_t* addresses,
    uint32_t bucket,
    double p,
    int compare,
    gradsync_reduce_result* result
) {
  return guarded([&] {
    if (!(p >= 1)) {
      throw std::invalid_argument("p is " + std::to_string(p) + ", not 1 or more");
    }
    const ReduceBucket& what = reduction->bucket(bucket);
    const ReduceMemory memory = reduction->place(addresses, bucket);
    must(gradsync::kernels::reduce(reduction->table, {bucket, p, compare != 0}, memory, nullptr), "reducing");
    if (!in_one_pass(p)) {
      const std::vector<double> ones(what.chunks, 1.0);
      upload(reduction->scales_at() + what.first_chunk, ones.data(), ones.size() * sizeof(double), "copying scales");
      const double* scales = reduction->scales_at();
      must(gradsync::kernels::sum_powers(reduction->table, {bucket, p, false}, scales, memory, nullptr), "summing");
    }
    const std::vector<ReducedChunk> found = reduction->results(what);
    static_assert(sizeof(ReducedChunk) == sizeof(gradsync_reduced_chunk));
    if (!found.empty()) {
      std::memcpy(result->chunks, found.data(), found.size() * sizeof(ReducedChunk));
    }
    const auto any = [&found](std::uint32_t ReducedChunk::*field) {
      return std::any_of(found.begin(), found.end(), [field](const ReducedChunk& chunk) { return chunk.*field != 0; });
    };
    result->found = 0;
    if (any(&ReducedChunk::nonfinite)) {
      result->found |= GRADSYNC_FOUND_NONFINITE;
      reduction->take(result->nonfinite, reduction->nonfinite, reduction->table.places() * sizeof(std::uint64_t));
    }
    if (any(&ReducedChunk::differs)) {
      result->found |= GRADSYNC_FOUND_DIFFERENT;
      reduction->take(result->differs, reduction->differs, reduction->table.sums() * sizeof(std::uint32_t));
    }
  });
}

GRADSYNC_EXPORT int gradsync_sum_powers(
    gradsync_reduction* reduction,
    const uint64_t* addresses,
    uint32_t bucket,
    double p,
    const double* scales,
    gradsync_reduced_chunk* chunks
) {
  return guarded([&] {
    const ReduceBucket& what = reduction->bucket(bucket);
    const ReduceMemory memory = reduction->place(addresses, bucket);
    upload(reduction->scales_at() + what.first_chunk, scales, what.chunks * sizeof(double), "copying scales");
    must(
        gradsync::kernels::sum_powers(reduction->table, {bucket, p, false}, reduction->scales_at(), memory, nullptr),
        "summing"
    );
    const std::vector<ReducedChunk> found = reduction->results(what);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (scales[i] != 0) {
        chunks[i].high = found[i].high;
        chunks[i].low = found[i].low;
      }
    }
  });
}
