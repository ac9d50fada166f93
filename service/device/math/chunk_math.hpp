#pragma once
// The arithmetic of one chunk: sum over ranks, divide, round, write to every rank and gather statistics in one pass;
// and the multiplication of a clip. Vector code for every CPU this build knows, chosen at run time.
//
// Invariant: the bits do not depend on the vector width. Elements are summed over the sources in the order given;
// element i of a run is added to accumulator i mod 32; the 32 accumulators are combined pairwise in a fixed order. A
// run is therefore rows of 32 elements, the last one padded with zeros, and a run of a few elements costs the
// arithmetic of 32 (the last run of a chunk a copy to the stack besides, where vectors have no masks). Powers of
// float64 values are compensated: each accumulator has a second one for what rounding loses, and the sum is a pair of
// doubles. `chunk_reference.hpp` says the same in plain loops, and the tests hold the two together bit for bit.

#include "arithmetic/double_double.hpp"
#include "plan/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gradsync::device {

using arithmetic::DoubleDouble;
using arithmetic::two_sum;

/// Elements of a chunk. Part of the definition of a norm's bits, so a constant; a multiple of 32.
inline constexpr std::size_t kChunkElements = 16'384;

inline constexpr std::size_t kAccumulators = 32;

/// The power of |g| that is summed. `None` sums nothing: for the infinity norm, and for other powers, which `power_sum`
/// takes in a pass of its own.
enum class PowerKind : std::uint8_t { None, One, Two };

/// Statistics of the stored (rounded) values of one chunk.
struct ChunkStats {
  /// Σ|g|^p. For float64 values it is exact to about 2^-85, or infinite where it leaves 2^1000; for others `low` is 0.
  /// It is not finite where a value is not.
  DoubleDouble power_sum;
  double maximum = 0;           ///< the largest finite |g|
  std::uint64_t nonfinite = 0;  ///< infinite and NaN
  std::uint64_t nan = 0;
};

struct ReduceChunk {
  plan::DType dtype = plan::DType::Float32;
  std::size_t count = 0;                 ///< elements of a run; any number
  std::size_t runs = 1;                  ///< at equal distances in the sources, together in the destinations
  std::size_t source_distance = 0;       ///< elements from the begin of a run to that of the next
  std::span<const void* const> sources;  ///< at least one; element-aligned
  /// Each may equal a source, if there is one run (then at the same position). Empty: only statistics.
  std::span<void* const> destinations;
  double divisor = 1.0;  ///< finite, > 0; rounded to float32 unless the dtype is float64
  PowerKind power = PowerKind::Two;
  /// One counter per source, raised by its non-finite values. Touched only if there are any.
  std::uint64_t* source_nonfinite = nullptr;
};

[[nodiscard]] ChunkStats reduce_chunk(const ReduceChunk& chunk);

/// The same for chunks of one format, whatever `dtype` says.
[[nodiscard]] ChunkStats reduce_float32(const ReduceChunk& chunk);
[[nodiscard]] ChunkStats reduce_bfloat16(const ReduceChunk& chunk);
[[nodiscard]] ChunkStats reduce_float16(const ReduceChunk& chunk);
[[nodiscard]] ChunkStats reduce_float64(const ReduceChunk& chunk);

/// A source of a sum in which formats differ.
struct MixedSource {
  const void* data = nullptr;
  plan::DType dtype = plan::DType::Float32;
};

/// As ReduceChunk, for sources of any format but float64, which are added in float32. No destination is a source.
struct MixedChunk {
  plan::DType dtype = plan::DType::Float32;  ///< of the destinations; not float64
  std::size_t count = 0;
  std::size_t runs = 1;
  std::size_t source_distance = 0;
  std::span<const MixedSource> sources;
  std::span<void* const> destinations;
  double divisor = 1.0;
  PowerKind power = PowerKind::Two;
};

[[nodiscard]] ChunkStats reduce_mixed(const MixedChunk& chunk);

/// The same for destinations of one format, whatever `dtype` says.
[[nodiscard]] ChunkStats mix_to_float32(const MixedChunk& chunk);
[[nodiscard]] ChunkStats mix_to_bfloat16(const MixedChunk& chunk);
[[nodiscard]] ChunkStats mix_to_float16(const MixedChunk& chunk);

/// The way in which destinations other than the first are written. A line that is written past the cache is not fetched
/// before, which is a third of the bytes that copies cost; its reader does not find it in the cache.
enum class Stores : std::uint8_t { Cached, PastCache };

/// Each destination = round(source · multiplier), in float32 (float64 for float64). The source may be the first
/// destination: scaling in place is one destination equal to it, and copies known to be equal are read once. After
/// stores past the cache the thread has to call `fence_stores` before it tells anybody.
void scale_chunk(
    plan::DType dtype,
    const void* source,
    std::span<void* const> destinations,
    std::size_t count,
    double multiplier,
    Stores stores = Stores::Cached
);

void fence_stores();

/// Names of the vector targets of this build that this CPU can run, best first.
[[nodiscard]] std::vector<std::string> vector_targets();

/// For tests: pretends that the CPU has only this target; empty: what it really has. Errors by assertion.
void use_vector_target(const std::string& name);

}  // namespace gradsync::device
