#include "gpu/bench_cases.hpp"

#include "arithmetic/half.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace gradsync::kernels {

namespace {

constexpr std::uint64_t kWidth = 2;
constexpr std::uint64_t kAlignment = 512;  // as torch allocates

std::uint64_t padded(std::uint64_t count) { return (count * kWidth + kAlignment - 1) / kAlignment * kAlignment; }

std::uint64_t allocation(const std::vector<std::uint64_t>& counts) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t count : counts) {
    bytes += padded(count);
  }
  return bytes;
}

/// From 1 k to 100 M elements, each decade as likely as another, in no order.
std::vector<std::uint64_t> mixed_counts(std::uint64_t bytes) {
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

std::vector<std::uint16_t> gradient_like(std::size_t count) {
  std::mt19937_64 random(2);
  std::vector<std::uint16_t> values(count);
  for (std::uint16_t& value : values) {
    const std::uint64_t bits = random();
    const auto magnitude = static_cast<float>(bits >> 40) * 0x1p-24F * 2e-3F;
    value = arithmetic::float_to_bfloat16((bits & 1) != 0 ? -magnitude : magnitude);
  }
  return values;
}

}  // namespace

std::vector<BenchCase> bench_cases(std::uint64_t shrink) {
  return {
      {"a", "one tensor of 1.5 G elements", {1'500'000'000 / shrink}},
      {"b", "500 tensors of 450 k elements", std::vector<std::uint64_t>(500, 450'000 / shrink)},
      {"c", "10,000 tensors of 1 k elements", std::vector<std::uint64_t>(10'000 / shrink, 1'000)},
      {"d", "8 GB of mixed sizes", mixed_counts(8'000'000'000 / shrink)},
  };
}

std::uint64_t bytes_of(const BenchCase& bench) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t count : bench.counts) {
    bytes += count * kWidth;
  }
  return bytes;
}

BenchMemory::BenchMemory(const BenchCase& bench)
    : source_(allocation(bench.counts)), destination_(allocation(bench.counts)) {
  const std::vector<std::uint16_t> values = gradient_like(std::min<std::size_t>(16U << 20, source_.bytes() / kWidth));
  const std::size_t block = values.size() * kWidth;
  for (std::size_t offset = 0; offset < source_.bytes(); offset += block) {
    source_.upload(values.data(), std::min(block, source_.bytes() - offset), offset);
  }
  std::uint64_t offset = 0;
  for (const std::uint64_t count : bench.counts) {
    tensors_.push_back({source_.get() + offset, count, DType::BFloat16, 0, 0});
    offset += padded(count);
  }
}

void BenchMemory::enqueue_copy(cudaStream_t stream) const {
  must(
      cudaMemcpyAsync(destination_.get(), source_.get(), source_.bytes(), cudaMemcpyDeviceToDevice, stream),
      "copy on the device"
  );
}

}  // namespace gradsync::kernels
