#pragma once
// The promises of chunk_math.hpp as plain loops: the definition that every vector target must meet bit for bit, and the
// code for rare cases (rows with non-finite values, powers other than 1 and 2, rescaled sums) on all of them.

#include "device/math/chunk_math.hpp"

#include <array>

namespace gradsync::device {

[[nodiscard]] ChunkStats reduce_chunk_reference(const ReduceChunk& chunk);
[[nodiscard]] ChunkStats reduce_mixed_reference(const MixedChunk& chunk);
void scale_chunk_reference(plan::DType dtype, void* values, std::size_t count, double multiplier);

/// Combines the accumulators pairwise: 0 with 16, …, then 0 with 8, …
[[nodiscard]] double combine_accumulators(std::array<double, kAccumulators> sums);

/// The same for compensated sums; infinite where the sum leaves 2^1000 or is NaN, because targets differ in the rest.
[[nodiscard]] DoubleDouble combine_accumulators(
    const std::array<double, kAccumulators>& high, const std::array<double, kAccumulators>& low
);

/// The error of a square is exact from here on. Smaller squares matter to no sum that is not taken again rescaled.
inline constexpr double kSmallestExactSquare = 0x1p-968;

/// Σ(|g| / scale)^p with the same accumulators, all values one run. Any p ≥ 1. For p other than 1 and 2 the bits depend
/// on the machine's libm as well.
[[nodiscard]] DoubleDouble power_sum(plan::DType dtype, const void* values, std::size_t count, double p, double scale);

/// Non-finite values among `count` stored elements.
[[nodiscard]] std::uint64_t count_nonfinite(plan::DType dtype, const void* values, std::size_t count);

/// A row of up to 32 results that holds a non-finite one, before rounding: writes the rounded bits to `stored` and the
/// values they stand for back to `values`, counts, and raises `maximum` by the finite ones. Makes every NaN the
/// canonical one.
void finish_nonfinite_row(plan::DType dtype, float* values, std::size_t count, void* stored, ChunkStats& stats);
void finish_nonfinite_row(double* values, std::size_t count, void* stored, ChunkStats& stats);

}  // namespace gradsync::device
