#include "kernels/kernels.hpp"
#include "kernels/measure_kernel.cuh"

namespace gradsync::kernels {

namespace {

Power power_of(double p) {
  return p == 2 ? Power::Two : p == 1 ? Power::One : is_finite(p) ? Power::Any : Power::Maximum;
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

/// Whether the dtype's items are read in this round.
bool takes_part(const DeviceTable& table, DType dtype, Power power, Round round) {
  const ItemRange range = table.of_dtype[static_cast<std::size_t>(dtype)];
  return range.begin != range.end && (round == Round::First || may_leave_range(dtype, power));
}

/// One pass over the dtypes that take part: a launch each, of which the last block of all adds what they gathered.
cudaError_t launch_round(const DeviceTable& table, MeasureLaunch& launch, cudaStream_t stream) {
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
    launch.pass.work = {
        table.items, table.of_dtype[i].begin, table.of_dtype[i].end, launch.pass.scratch.counters->next + i};
    if (const cudaError_t error = launch_dtype(static_cast<DType>(i), launch, stream); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

}  // namespace

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
  launch.pass.split = table.split;
  launch.pass.group_first = table.group_first;
  launch.pass.group_tensors = table.group_tensors;
  launch.pass.scratch = scratch_at(scratch, table);
  launch.pass.tensors = tensors;
  launch.pass.groups = groups;
  launch.pass.p = what.p;
  launch.pass.split_count = table.split_count;
  bool twice = false;
  for (std::size_t i = 0; i < kDTypes; ++i) {
    twice = twice || takes_part(table, static_cast<DType>(i), launch.power, Round::Again);
  }
  launch.round = Round::First;
  launch.pass.fingerprint = what.fingerprint;
  launch.pass.norm_groups = twice ? 0 : table.norm_groups;
  if (const cudaError_t error = launch_round(table, launch, stream); error != cudaSuccess || !twice) {
    return error;
  }
  launch.round = Round::Again;
  launch.pass.again = true;
  launch.pass.fingerprint = false;
  launch.pass.norm_groups = table.norm_groups;
  return launch_round(table, launch, stream);
}

}  // namespace gradsync::kernels
