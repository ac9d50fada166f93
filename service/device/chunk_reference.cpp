#include "device/chunk_reference.hpp"

#include "base/assert.hpp"
#include "device/half.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

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

  static Value load(Stored stored) { return bfloat16_to_float(stored); }

  static Stored store(Value value) { return float_to_bfloat16(value); }
};

struct Float16 {
  using Stored = std::uint16_t;
  using Value = float;

  static Value load(Stored stored) { return float16_to_float(stored); }

  static Stored store(Value value) { return float_to_float16(value); }
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

template <typename Format>
ChunkStats reduce(const ReduceChunk& chunk, Format) {
  using Stored = typename Format::Stored;
  using Value = typename Format::Value;
  ChunkStats stats;
  std::array<double, kAccumulators> sums{};
  const auto divisor = static_cast<Value>(chunk.divisor);
  for (std::size_t i = 0; i < chunk.count; ++i) {
    Value value{};
    for (std::size_t s = 0; s < chunk.sources.size(); ++s) {
      const Value term = Format::load(static_cast<const Stored*>(chunk.sources[s])[i]);
      value = s == 0 ? term : value + term;
      if (!std::isfinite(term) && chunk.source_nonfinite != nullptr) {
        ++chunk.source_nonfinite[s];
      }
    }
    const Stored stored = Format::store(divisor == Value{1} ? value : value / divisor);
    const double magnitude = std::abs(static_cast<double>(Format::load(stored)));
    count(magnitude, stats);
    if (chunk.power == PowerKind::Two) {
      sums[i % kAccumulators] += magnitude * magnitude;
    } else if (chunk.power == PowerKind::One) {
      sums[i % kAccumulators] += magnitude;
    }
    for (void* destination : chunk.destinations) {
      static_cast<Stored*>(destination)[i] = stored;
    }
  }
  stats.power_sum = combine_accumulators(sums);
  return stats;
}

}  // namespace

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

double power_sum(plan::DType dtype, const void* values, std::size_t count, double p, double scale) {
  return with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    const auto* stored = static_cast<const typename Format::Stored*>(values);
    std::array<double, kAccumulators> sums{};
    for (std::size_t i = 0; i < count; ++i) {
      const double magnitude = std::abs(static_cast<double>(Format::load(stored[i]))) / scale;
      sums[i % kAccumulators] += p == 2 ? magnitude * magnitude : p == 1 ? magnitude : std::pow(magnitude, p);
    }
    return combine_accumulators(sums);
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
