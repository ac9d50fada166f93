#include "kernels/kernels.hpp"
#include "kernels/measure/measure_kernel.cuh"

namespace gradsync::kernels {

inline namespace of_measure {

Power power_of(double p) {
  return p == 2 ? Power::Two : p == 1 ? Power::One : arithmetic::is_finite(p) ? Power::Any : Power::Maximum;
}

bool may_leave_range(DType dtype, Power power) {
  return power == Power::Any || (dtype == DType::Float64 && power != Power::Maximum);
}

cudaError_t launch_dtype(DType dtype, const MeasureLaunch& what, cudaStream_t stream) {
  switch (dtype) {
    case DType::Float32:
      return measure_float32(what, stream);
    case DType::BFloat16:
      return measure_bfloat16(what, stream);
    case DType::Float16:
      return measure_float16(what, stream);
    case DType::Float64:
      return measure_float64(what, stream);
  }
  return cudaErrorInvalidValue;
}

/// Every `stride`th record of a tensor.
__device__ inline PowerSum sum_records(
    const MeasurePass& pass, const TensorEntry& entry, std::uint32_t own, std::uint32_t stride
) {
  PowerSum sum = empty_sum();
#pragma unroll 4
  for (std::uint32_t i = own; i < entry.pieces; i += stride) {
    add_part(sum, load_record(pass.scratch.records + entry.first_record + i));
  }
  if (pass.fingerprint) {
    for (std::uint32_t i = own; i < entry.pieces; i += stride) {
      sum.fingerprint += load_fresh(pass.scratch.fingerprints + entry.first_record + i);
    }
  }
  return sum;
}

struct AddPass {
  MeasurePass pass;
  const std::uint32_t* split;
  std::uint32_t split_count;
  std::uint32_t many_count;
};

/// Adds the records of each split tensor: the first blocks one tensor each, those after them one per warp. The last
/// block adds the groups.
__global__ void __launch_bounds__(kThreads) add_kernel(const AddPass add) {
  const MeasurePass& pass = add.pass;
  const bool many = blockIdx.x < add.many_count;
  const std::uint32_t place =
      many ? blockIdx.x : add.many_count + (blockIdx.x - add.many_count) * kWarps + threadIdx.x / kWarp;
  if (place < add.split_count) {
    const std::uint32_t tensor = add.split[place];
    const double divisor = pass.again ? divisor_of(pass, tensor) : 1;
    if (divisor != 0) {
      const TensorEntry entry = pass.entries[tensor];
      const auto add_parts = [](PowerSum& to, const PowerSum& other) { add_part(to, other); };
      const PowerSum sum = many ? tree_sum(sum_records(pass, entry, threadIdx.x, kThreads), add_parts)
                                : warp_tree_sum(sum_records(pass, entry, threadIdx.x % kWarp, kWarp), add_parts);
      if (threadIdx.x % (many ? kThreads : kWarp) == 0) {
        put_tensor(pass, tensor, sum, divisor);
      }
    }
  }
  if (arrive_last(&pass.scratch.counters->arrived, gridDim.x)) {
    add_groups(pass);
    reset(pass.scratch.counters);
  }
}

cudaError_t launch_add(const DeviceTable& table, const MeasurePass& pass, cudaStream_t stream) {
  const std::uint32_t few = table.split_count - table.many_count;
  const AddPass add{pass, table.split, table.split_count, table.many_count};
  return launch(add_kernel, table.many_count + (few + kWarps - 1) / kWarps, add, stream);
}

/// Whether the dtype's items are read in this round.
bool takes_part(const DeviceTable& table, DType dtype, Power power, Round round) {
  const ItemRange range = table.of_dtype[static_cast<std::size_t>(dtype)];
  return range.begin != range.end && (round == Round::First || may_leave_range(dtype, power));
}

/// One pass over the dtypes that take part: a launch each, and one that adds records where there are any. The last
/// block of all adds the norm groups, if this is the `last` round.
cudaError_t launch_round(const DeviceTable& table, bool last, MeasureLaunch& launch, cudaStream_t stream) {
  const std::uint32_t norm_groups = last ? table.norm_groups : 0;
  launch.pass.norm_groups = table.split_count == 0 ? norm_groups : 0;
  std::uint32_t blocks[kDTypes] = {};
  launch.pass.blocks = 0;
  for (std::size_t i = 0; i < kDTypes; ++i) {
    if (takes_part(table, static_cast<DType>(i), launch.power, launch.round)) {
      const ItemRange range = table.of_dtype[i];
      if (const cudaError_t error = blocks_for(range.end - range.begin, measure_blocks(launch.power), blocks[i]);
          error != cudaSuccess) {
        return error;
      }
      launch.pass.blocks += blocks[i];
    }
  }
  if (launch.pass.blocks == 0) {
    // No tensors: one block that finds no item gives the groups their zeros.
    blocks[0] = 1;
    launch.pass.blocks = 1;
  }
  for (std::size_t i = 0; i < kDTypes; ++i) {
    if (blocks[i] == 0) {
      continue;
    }
    launch.blocks = blocks[i];
    launch.pass.work = items_of(table, i, launch.pass.scratch.counters);
    if (const cudaError_t error = launch_dtype(static_cast<DType>(i), launch, stream); error != cudaSuccess) {
      return error;
    }
  }
  if (table.split_count == 0) {
    return cudaSuccess;
  }
  MeasurePass adding = launch.pass;
  adding.norm_groups = norm_groups;
  return launch_add(table, adding, stream);
}

}  // namespace of_measure

cudaError_t measure(
    const DeviceTable& table,
    const Measurement& what,
    void* scratch,
    PowerSum* tensors,
    PowerSum* groups,
    cudaStream_t stream
) {
  if (!(what.p >= 1)) {
    return cudaErrorInvalidValue;
  }
  MeasureLaunch launch{};
  launch.power = power_of(what.p);
  launch.pass.small = table.small;
  launch.pass.entries = table.tensors;
  launch.pass.group_first = table.group_first;
  launch.pass.group_tensors = table.group_tensors;
  launch.pass.scratch = scratch_at(scratch, table);
  launch.pass.tensors = tensors;
  launch.pass.groups = groups;
  launch.pass.p = what.p;
  bool twice = false;
  for (std::size_t i = 0; i < kDTypes; ++i) {
    twice = twice || takes_part(table, static_cast<DType>(i), launch.power, Round::Again);
  }
  launch.round = Round::First;
  launch.pass.fingerprint = what.fingerprint;
  if (const cudaError_t error = launch_round(table, !twice, launch, stream); error != cudaSuccess || !twice) {
    return error;
  }
  launch.round = Round::Again;
  launch.pass.again = true;
  launch.pass.fingerprint = false;
  return launch_round(table, true, launch, stream);
}

}  // namespace gradsync::kernels
