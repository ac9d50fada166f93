#include "device/math/chunk_reference.hpp"

#include "arithmetic/half.hpp"
#include "base/assert.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace gradsync::device {

namespace {

struct Float32 {
  using Stored = float;
  using Value = float;

  static Value load(Stored stored) { return stored; }

  static Stored store(Value value) { return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value; }
};

struct Float64 {
  using Stored = double;
  using Value = double;

  static Value load(Stored stored) { return stored; }

  static Stored store(Value value) { return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value; }
};

struct BFloat16 {
  using Stored = std::uint16_t;
  using Value = float;

  static Value load(Stored stored) { return arithmetic::bfloat16_to_float(stored); }

  static Stored store(Value value) { return arithmetic::float_to_bfloat16(value); }
};

struct Float16 {
  using Stored = std::uint16_t;
  using Value = float;

  static Value load(Stored stored) { return arithmetic::float16_to_float(stored); }

  static Stored store(Value value) { return arithmetic::float_to_float16(value); }
};

template <typename Function>
auto with_format(plan::DType dtype, Function function) {
  switch (dtype) {
    case plan::DType::Float32:
      return function(Float32{});
    case plan::DType::BFloat16:
      return function(BFloat16{});
    case plan::DType::Float16:
      return function(Float16{});
    case plan::DType::Float64:
      return function(Float64{});
  }
  GRADSYNC_ASSERT(false, "a dtype without arithmetic");
}

void count(double value, ChunkStats& stats) {
  if (std::isfinite(value)) {
    stats.maximum = std::max(stats.maximum, std::abs(value));
  } else {
    ++stats.nonfinite;
    stats.nan += std::isnan(value) ? 1 : 0;
  }
}

/// The accumulators of a chunk. `Value` is what a format computes with: sums of doubles are compensated.
template <typename Value>
class PowerSums {
 public:
  void add(std::size_t element, DoubleDouble power) {
    double& high = high_[element % kAccumulators];
    if constexpr (std::is_same_v<Value, double>) {
      const DoubleDouble sum = two_sum(high, power.high);
      high = sum.high;
      low_[element % kAccumulators] += sum.low + power.low;
    } else {
      high += power.high;
    }
  }

  [[nodiscard]] DoubleDouble total() const {
    if constexpr (std::is_same_v<Value, double>) {
      return combine_accumulators(high_, low_);
    } else {
      return {combine_accumulators(high_), 0};
    }
  }

 private:
  std::array<double, kAccumulators> high_{};
  std::array<double, kAccumulators> low_{};
};

DoubleDouble square(double value) {
  const double rounded = value * value;
  return {rounded, rounded >= kSmallestExactSquare ? std::fma(value, value, -rounded) : 0};
}

/// quotient^p, where quotient is value / scale rounded: p times the relative error of the division is the power's, and
/// is put right. It is 0 unless the scale is no power of two.
DoubleDouble power(double value, double quotient, double scale, double p) {
  const double power = std::pow(quotient, p);
  const double error = value > 0 && scale != 1 ? std::fma(-quotient, scale, value) / value : 0;
  return {power, power * p * error};
}

template <typename Format>
ChunkStats reduce(const ReduceChunk& chunk, Format) {
  using Stored = typename Format::Stored;
  using Value = typename Format::Value;
  ChunkStats stats;
  PowerSums<Value> sums;
  const auto divisor = static_cast<Value>(chunk.divisor);
  for (std::size_t element = 0; element < chunk.count * chunk.runs; ++element) {
    const std::size_t i = element % chunk.count;  // of its run
    const std::size_t from = element / chunk.count * chunk.source_distance + i;
    Value value{};
    for (std::size_t s = 0; s < chunk.sources.size(); ++s) {
      const Value term = Format::load(static_cast<const Stored*>(chunk.sources[s])[from]);
      value = s == 0 ? term : value + term;
      if (!std::isfinite(term) && chunk.source_nonfinite != nullptr) {
        ++chunk.source_nonfinite[s];
      }
    }
    const Stored stored = Format::store(divisor == Value{1} ? value : value / divisor);
    const double magnitude = std::abs(static_cast<double>(Format::load(stored)));
    count(magnitude, stats);
    if (chunk.power == PowerKind::Two) {
      sums.add(i, square(magnitude));
    } else if (chunk.power == PowerKind::One) {
      sums.add(i, {magnitude, 0});
    }
    for (void* destination : chunk.destinations) {
      static_cast<Stored*>(destination)[element] = stored;
    }
  }
  stats.power_sum = sums.total();
  return stats;
}

float float_at(const MixedSource& source, std::size_t element) {
  if (source.dtype == plan::DType::Float32) {
    return static_cast<const float*>(source.data)[element];
  }
  const std::uint16_t stored = static_cast<const std::uint16_t*>(source.data)[element];
  return source.dtype == plan::DType::BFloat16 ? BFloat16::load(stored) : Float16::load(stored);
}

}  // namespace

ChunkStats reduce_mixed_reference(const MixedChunk& chunk) {
  std::vector<float> values;
  for (std::size_t element = 0; element < chunk.count * chunk.runs; ++element) {
    const std::size_t from = element / chunk.count * chunk.source_distance + element % chunk.count;
    float value = float_at(chunk.sources[0], from);
    for (const MixedSource& source : chunk.sources.subspan(1)) {
      value += float_at(source, from);
    }
    values.push_back(static_cast<float>(chunk.divisor) == 1.0F ? value : value / static_cast<float>(chunk.divisor));
  }
  return with_format(chunk.dtype, [&](auto format) {
    using Format = decltype(format);
    ChunkStats stats;
    PowerSums<float> sums;
    for (std::size_t element = 0; element < values.size(); ++element) {
      const auto stored = Format::store(static_cast<typename Format::Value>(values[element]));
      const double magnitude = std::abs(static_cast<double>(Format::load(stored)));
      count(magnitude, stats);
      if (chunk.power != PowerKind::None) {
        sums.add(element % chunk.count, chunk.power == PowerKind::Two ? square(magnitude) : DoubleDouble{magnitude, 0});
      }
      for (void* destination : chunk.destinations) {
        static_cast<typename Format::Stored*>(destination)[element] = stored;
      }
    }
    stats.power_sum = sums.total();
    return stats;
  });
}

ChunkStats reduce_chunk_reference(const ReduceChunk& chunk) {
  return with_format(chunk.dtype, [&](auto format) { return reduce(chunk, format); });
}

void scale_chunk_reference(plan::DType dtype, void* values, std::size_t count, double multiplier) {
  with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    auto* stored = static_cast<typename Format::Stored*>(values);
    const auto factor = static_cast<typename Format::Value>(multiplier);
    for (std::size_t i = 0; i < count; ++i) {
      stored[i] = Format::store(Format::load(stored[i]) * factor);
    }
  });
}

double combine_accumulators(std::array<double, kAccumulators> sums) {
  for (std::size_t half = kAccumulators / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      sums[i] += sums[i + half];
    }
  }
  return sums[0];
}

DoubleDouble combine_accumulators(
    const std::array<double, kAccumulators>& high, const std::array<double, kAccumulators>& low
) {
  std::array<DoubleDouble, kAccumulators> sums;
  for (std::size_t i = 0; i < kAccumulators; ++i) {
    sums[i] = two_sum(high[i], low[i]);
  }
  for (std::size_t half = kAccumulators / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      sums[i] = sums[i] + sums[i + half];
    }
  }
  return sums[0].high < 0x1p1000 ? sums[0] : DoubleDouble{std::numeric_limits<double>::infinity(), 0};
}

DoubleDouble power_sum(plan::DType dtype, const void* values, std::size_t count, double p, double scale) {
  return with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    const auto* stored = static_cast<const typename Format::Stored*>(values);
    PowerSums<typename Format::Value> sums;
    for (std::size_t i = 0; i < count; ++i) {
      const double value = std::abs(static_cast<double>(Format::load(stored[i])));
      const double magnitude = value / scale;
      sums.add(i, p == 2 ? square(magnitude) : p == 1 ? DoubleDouble{magnitude, 0} : power(value, magnitude, scale, p));
    }
    return sums.total();
  });
}

std::uint64_t count_nonfinite(plan::DType dtype, const void* values, std::size_t count) {
  return with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    const auto* stored = static_cast<const typename Format::Stored*>(values);
    std::uint64_t found = 0;
    for (std::size_t i = 0; i < count; ++i) {
      found += std::isfinite(Format::load(stored[i])) ? 0 : 1;
    }
    return found;
  });
}

void finish_nonfinite_row(
    plan::DType dtype, float* values, std::size_t count_of_values, void* stored, ChunkStats& stats
) {
  with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    if constexpr (std::is_same_v<typename Format::Value, float>) {
      auto* out = static_cast<typename Format::Stored*>(stored);
      for (std::size_t i = 0; i < count_of_values; ++i) {
        out[i] = Format::store(values[i]);
        values[i] = Format::load(out[i]);
        count(values[i], stats);
      }
    }
  });
}

void finish_nonfinite_row(double* values, std::size_t count_of_values, void* stored, ChunkStats& stats) {
  auto* out = static_cast<double*>(stored);
  for (std::size_t i = 0; i < count_of_values; ++i) {
    out[i] = Float64::store(values[i]);
    values[i] = out[i];
    count(values[i], stats);
  }
}

}  // namespace gradsync::device
