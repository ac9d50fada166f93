#include "kernels/kernels.hpp"
#include "kernels/measure_kernel.cuh"

namespace gradsync::kernels {

namespace {

struct PlannedLaunch {
  DType dtype;
  Round round;
  std::uint32_t blocks;
};

/// The launches of a pass: all of its first round, then those of the second.
struct PlannedPass {
  PlannedLaunch launches[kPassLaunches];
  std::uint32_t count = 0;
  std::uint32_t blocks = 0;
};

Power power_of(double p) {
  return p == 2 ? Power::Two : p == 1 ? Power::One : is_finite(p) ? Power::Any : Power::Maximum;
}

bool may_leave_range(DType dtype, Power power) {
  return power == Power::Any || (dtype == DType::Float64 && power != Power::Maximum);
}

cudaError_t plan_round(const DeviceTable& table, Power power, Round round, PlannedPass& planned) {
  for (std::size_t i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const ItemRange range = table.of_dtype[i];
    if (range.begin == range.end || (round == Round::Again && !may_leave_range(dtype, power))) {
      continue;
    }
    PlannedLaunch& launch = planned.launches[planned.count++];
    launch = {dtype, round, 0};
    if (const cudaError_t error = blocks_for(range.end - range.begin, launch.blocks); error != cudaSuccess) {
      return error;
    }
    planned.blocks += launch.blocks;
  }
  return cudaSuccess;
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
  const Power power = power_of(what.p);
  PlannedPass planned;
  for (const Round round : {Round::First, Round::Again}) {
    if (const cudaError_t error = plan_round(table, power, round, planned); error != cudaSuccess) {
      return error;
    }
  }
  if (planned.count == 0) {
    // No tensors: the groups are still given their zeros.
    planned.launches[planned.count++] = {DType::Float32, Round::First, 1};
    planned.blocks = 1;
  }
  MeasureLaunch launch;
  launch.power = power;
  launch.fingerprint = what.fingerprint;
  launch.pass.small = table.small;
  launch.pass.entries = table.tensors;
  launch.pass.group_first = table.group_first;
  launch.pass.group_tensors = table.group_tensors;
  launch.pass.scratch = scratch_at(scratch, table);
  launch.pass.tensors = tensors;
  launch.pass.groups = groups;
  launch.pass.p = what.p;
  launch.pass.norm_groups = table.norm_groups;
  launch.pass.blocks = planned.blocks;
  for (std::uint32_t i = 0; i < planned.count; ++i) {
    const ItemRange range = table.of_dtype[static_cast<std::size_t>(planned.launches[i].dtype)];
    launch.pass.work = {table.items, range.begin, range.end, launch.pass.scratch.counters->next + i};
    launch.round = planned.launches[i].round;
    launch.blocks = planned.launches[i].blocks;
    if (const cudaError_t error = launch_dtype(planned.launches[i].dtype, launch, stream); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

}  // namespace gradsync::kernels
