#include "gpu/bench_cases.hpp"

#include "arithmetic/half.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>

namespace gradsync::kernels {

namespace {

constexpr std::uint64_t kAlignment = 512;  // as torch allocates

/// What a tensor takes, with what is skipped before it.
std::uint64_t padded(const BenchCase& bench, std::uint64_t count) {
  return ((bench.skipped + count) * size_of(bench.dtype) + kAlignment - 1) / kAlignment * kAlignment;
}

std::uint64_t allocation(const BenchCase& bench) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t count : bench.counts) {
    bytes += padded(bench, count);
  }
  return bytes;
}

/// From 1 k to 100 M elements, each decade as likely as another, in no order; so many bytes in bfloat16.
std::vector<std::uint64_t> mixed_counts(std::uint64_t bytes) {
  constexpr std::uint64_t kWidth = 2;
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> counts;
  std::uint64_t total = 0;
  while (total < bytes) {
    const double exponent = 3 + 5 * static_cast<double>(random() >> 11) * 0x1p-53;
    const std::uint64_t count =
        std::min(static_cast<std::uint64_t>(std::pow(10, exponent)), (bytes - total) / kWidth + 1);
    counts.push_back(count);
    total += count * kWidth;
  }
  return counts;
}

/// The bytes of so many values.
std::vector<std::byte> gradient_like(DType dtype, std::size_t count) {
  std::mt19937_64 random(2);
  std::vector<std::byte> bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random();
    const auto magnitude = static_cast<float>(bits >> 40) * 0x1p-24F * 2e-3F;
    const float value = (bits & 1) != 0 ? -magnitude : magnitude;
    if (dtype == DType::Float32) {
      std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
    } else {
      const std::uint16_t narrow = arithmetic::float_to_bfloat16(value);
      std::memcpy(bytes.data() + i * sizeof(narrow), &narrow, sizeof(narrow));
    }
  }
  return bytes;
}

}  // namespace

std::vector<BenchCase> bench_cases(std::uint64_t shrink) {
  return {
      {"a", "one tensor of 1.5 G elements", {1'500'000'000 / shrink}},
      {"b", "500 tensors of 450 k elements", std::vector<std::uint64_t>(500, 450'000 / shrink)},
      {"c", "10,000 tensors of 1 k elements", std::vector<std::uint64_t>(10'000 / shrink, 1'000)},
      {"d", "8 GB of mixed sizes", mixed_counts(8'000'000'000 / shrink)},
      {"m",
       "500 tensors of 450 k elements, misaligned",
       std::vector<std::uint64_t>(500, 450'000 / shrink),
       DType::BFloat16,
       1},
      {"e", "one tensor of 750 M float32", {750'000'000 / shrink}, DType::Float32},
      {"f", "500 tensors of 450 k float32", std::vector<std::uint64_t>(500, 450'000 / shrink), DType::Float32},
  };
}

std::uint64_t bytes_of(const BenchCase& bench) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t count : bench.counts) {
    bytes += count * size_of(bench.dtype);
  }
  return bytes;
}

BenchMemory::BenchMemory(const BenchCase& bench) : source_(allocation(bench)), destination_(allocation(bench)) {
  const std::size_t width = size_of(bench.dtype);
  const std::vector<std::byte> values =
      gradient_like(bench.dtype, std::min<std::size_t>(16U << 20, source_.bytes() / width));
  for (std::size_t offset = 0; offset < source_.bytes(); offset += values.size()) {
    source_.upload(values.data(), std::min(values.size(), source_.bytes() - offset), offset);
  }
  std::uint64_t offset = 0;
  for (const std::uint64_t count : bench.counts) {
    tensors_.push_back({source_.get() + offset + bench.skipped * width, count, bench.dtype, 0, 0});
    offset += padded(bench, count);
  }
}

void BenchMemory::enqueue_copy(cudaStream_t stream) const {
  must(
      cudaMemcpyAsync(destination_.get(), source_.get(), source_.bytes(), cudaMemcpyDeviceToDevice, stream),
      "copy on the device"
  );
}

}  // namespace gradsync::kernels
