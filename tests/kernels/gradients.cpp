#include "kernels/gradients.hpp"

#include <cmath>
#include <limits>
#include <random>

namespace gradsync::kernels {

namespace {

struct Range {
  int smallest;  ///< exponent of the smallest subnormal
  int largest;   ///< exponent of the largest value, less what a norm of many needs
  double tiny;   ///< whose square underflows
  double huge;   ///< whose square overflows
};

Range range_of(DType dtype) {
  switch (dtype) {
    case DType::Float16:
      return {-24, 15, 1e-7, 6e4};
    case DType::BFloat16:
      return {-133, 118, 1e-39, 6e31};
    case DType::Float32:
      return {-149, 118, 1e-39, 6e31};
    case DType::Float64:
      return {-1074, 1000, 1e-309, 1e300};
  }
  return {};
}

// Not a distribution of the standard library: those differ between libraries.
double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

double value_of(Values values, const Range& range, std::mt19937_64& random) {
  const double sign = (random() & 1) != 0 ? 1 : -1;
  switch (values) {
    case Values::Normal:
    case Values::Nonfinite:
      return sign * 2e-3 * uniform(random) * uniform(random);
    case Values::Constant:
      return 0.1;
    case Values::Tiny:
      return sign * range.tiny * uniform(random);
    case Values::Huge:
      return sign * range.huge * uniform(random);
    case Values::Extreme:
      return sign * std::ldexp(
                        1 + uniform(random) * 0.5,
                        range.smallest + static_cast<int>(uniform(random) * (range.largest - range.smallest))
                    );
    case Values::Zero:
      return 0;
  }
  return 0;
}

void spoil(HostTensor& tensor) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const std::uint64_t count = tensor.count();
  if (count == 0) {
    return;
  }
  set_element(tensor, count - 1, kNan);
  if (count > 1) {
    set_element(tensor, 0, -kInfinity);
  }
  for (std::uint64_t i = 37; i + 1 < count; i += 1 + count / 3) {
    set_element(tensor, i, i % 2 == 0 ? kInfinity : -kNan);
  }
}

}  // namespace

std::string name_of(DType dtype) {
  switch (dtype) {
    case DType::Float32:
      return "float32";
    case DType::BFloat16:
      return "bfloat16";
    case DType::Float16:
      return "float16";
    case DType::Float64:
      return "float64";
  }
  return "";
}

std::string name_of(Values values) {
  constexpr const char* kNames[] = {"normal", "constant", "tiny", "huge", "extreme", "zero", "nonfinite"};
  return kNames[static_cast<std::size_t>(values)];
}

std::string name_of_power(double p) {
  return p == 1 ? "p1" : p == 2 ? "p2" : p == 2.5 ? "p2_5" : p == 3 ? "p3" : "pinf";
}

HostTensor make_tensor(DType dtype, std::uint64_t count, Values values, std::size_t offset_elements) {
  HostTensor tensor;
  tensor.dtype = dtype;
  tensor.offset = offset_elements * size_of(dtype);
  tensor.bytes.resize(count * size_of(dtype));
  std::mt19937_64 random(count * 8 + static_cast<std::uint64_t>(values));
  const Range range = range_of(dtype);
  for (std::uint64_t i = 0; i < count; ++i) {
    set_element(tensor, i, value_of(values, range, random));
  }
  if (values == Values::Nonfinite) {
    spoil(tensor);
  }
  return tensor;
}

std::vector<std::uint64_t> interesting_counts(DType dtype) {
  const std::uint64_t width = size_of(dtype);
  const std::uint64_t vector = 16 / width;
  std::vector<std::uint64_t> counts;
  for (std::uint64_t count = 0; count <= 4 * vector + 1; ++count) {
    counts.push_back(count);
  }
  // A warp's vectors, a warp's unrolled loop, the largest small tensor, a block's unrolled loop, one piece, two pieces.
  for (const std::uint64_t boundary : {32 * 16, 4 * 32 * 16, 16 << 10, (16 << 10) + 256 * 16, 64 << 10, 128 << 10}) {
    for (const std::uint64_t count : {boundary / width - 1, boundary / width, boundary / width + 1}) {
      counts.push_back(count);
    }
  }
  return counts;
}

}  // namespace gradsync::kernels
