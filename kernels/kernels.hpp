#pragma once
// The passes over gradient memory on a GPU. A leaf: raw pointers, counts and a stream in, cudaError_t out.
//
// Every function enqueues on `stream` of the current device and returns; none allocates, waits, or reads back. All
// pointers are device memory that stays valid until the stream has passed. An error is that of a launch, or
// cudaErrorInvalidValue for arguments that cannot be meant; nothing was enqueued after the launch that failed. Faults
// of the device itself surface on the stream, as with any CUDA call. After an error, zero the scratch memory before
// using it again.
//
// Invariants: float additions have a fixed order and no float atomic is used, so the same values give the same bits in
// every run; a tensor's bits do not depend on its address or its neighbours (chunk_table.hpp). Gradients are read as
// stored; units are those of the stored values until `decide` divides by the loss scale.

#include "kernels/clip_outcome.hpp"
#include "kernels/power_sum.hpp"
#include "kernels/tables/chunk_table.hpp"
#include "kernels/tables/copy_table.hpp"
#include "kernels/tables/reduce_table.hpp"

// Only the types of the CUDA runtime are used, no functions, so that a program that includes this need not link it.
#include <driver_types.h>

namespace gradsync::kernels {

/// Success where the passes have code for the current device. One kernel is looked up for all, because they are
/// compiled for the same targets.
[[nodiscard]] cudaError_t find_code();

struct Measurement {
  double p = 2;              ///< 1, 2, any finite p ≥ 1, or infinity
  bool fingerprint = false;  ///< of the bytes, in the same pass (arithmetic/fingerprint.hpp)
};

/// One read of every tensor: tensors[i] = its Σ|g|^p, finite maximum, non-finite counts and fingerprint;
/// groups[j] = the sum over the tensors of norm group j, in index order. Sums are those of norm_sum.cpp of the CPU
/// engine (same definition, not the same bits), within 2^-24 of Σ for 16-bit types, far less for the others.
///
/// One launch per dtype in the table, and one more where tensors are larger than a piece (64 KiB); for float64, and for
/// p other than 1, 2 and infinity, the same again, which reads a tensor only where its plain sum left the range of
/// doubles. `tensors`: tensor_count of the table, `groups`: norm_groups; `scratch`: ChunkTable::scratch_bytes.
[[nodiscard]] cudaError_t measure(
    const DeviceTable& table,
    const Measurement& what,
    void* scratch,
    PowerSum* tensors,
    PowerSum* groups,
    cudaStream_t stream
);

/// Sums → outcomes, one per clip group: the sums of clip group i are sums[i · sums_per_group …], added in this order
/// (its norm groups, those of other ranks, or both: whatever was gathered). Then `clip` of clip.hpp. `scale` is the
/// loss scale of the stored values, > 0. `rules` and `outcomes`: clip_groups each. One launch.
[[nodiscard]] cudaError_t decide(
    const PowerSum* sums,
    std::uint32_t sums_per_group,
    const arithmetic::ClipLimit* rules,
    std::uint32_t clip_groups,
    double p,
    double scale,
    ClipOutcome* outcomes,
    cudaStream_t stream
);

/// Multiplies every tensor by the multiplier of its clip group, in float32 (float64 for float64), one rounding, NaN
/// made canonical; tensors whose outcome changes nothing are not touched, and if there is no other the launch returns
/// at once. One launch per dtype in the table. `outcomes`: clip_groups of the table.
[[nodiscard]] cudaError_t scale(
    const DeviceTable& table, const ClipOutcome* outcomes, void* scratch, cudaStream_t stream
);

/// A pass over one bucket of a ReduceTable.
struct Reduction {
  std::uint32_t bucket = 0;
  double p = 2;  ///< any p ≥ 1, or infinity. `reduce` sums the powers 1 and 2; others by `sum_powers` after it
  bool compare = false;  ///< the sums of each part with its counted one, bit by bit
};

/// The device memory of the passes over a ReduceTable.
struct ReduceMemory {
  const void* image = nullptr;               ///< of the table
  const std::uint64_t* addresses = nullptr;  ///< by place, aligned to an element
  ReducedChunk* chunks = nullptr;            ///< by chunk; written
  /// By place: the values of an input that are not finite, added up; it is touched only where a sum has some.
  std::uint64_t* nonfinite = nullptr;
  std::uint32_t* differs = nullptr;  ///< by sum: set to 1 where it is not equal to the counted one
};

/// Each sum of the bucket: its inputs added in order, in float32 (float64 for float64), divided, rounded once, NaN made
/// canonical, and written to its outputs. An output may be an input of the same sum, if it lies at the same place and
/// formats are equal. A sum whose only input is its only output, and which nothing divides, is not written. Where no
/// input has an address, zeros are written, or −0. The bits of results and statistics are those of reduce_chunk and
/// reduce_mixed of the CPU engine. One launch.
[[nodiscard]] cudaError_t reduce(
    const ReduceTable& table, const Reduction& what, const ReduceMemory& memory, cudaStream_t stream
);

/// Takes Σ(|g| / scale)^p again, of the counted sums that `reduce` wrote: for powers other than 1 and 2, and for plain
/// sums that left the range. `scales`: by chunk; 0 leaves the chunk alone. For p other than 1 and 2 the last bits are
/// those of the device's `pow`. One launch.
[[nodiscard]] cudaError_t sum_powers(
    const ReduceTable& table,
    const Reduction& what,
    const double* scales,
    const ReduceMemory& memory,
    cudaStream_t stream
);

/// All parts of the table: pack, unpack or cast (copy_table.hpp). Parts must not overlap. One launch per pair of
/// dtypes.
[[nodiscard]] cudaError_t copy(const DeviceCopyTable& table, cudaStream_t stream);

}  // namespace gradsync::kernels
