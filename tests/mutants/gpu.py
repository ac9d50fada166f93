"""Faults in the reduction of GPUs: its kernels, and the tables and findings of a lane that uses them."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["GPU"]


def kernel(name: str, fault: str, old: str, new: str, file: str = "reduce.cu") -> Mutant:
    return Mutant(name, fault, "gpu", f"kernels/{file}", old, new)


def lane(name: str, fault: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "gpu", "service/device/gpu/gpu_plan.cpp", old, new)


GPU = (
    kernel(
        "gpu-sources-in-another-order",
        "Ranks are added from the last to the first: the sums round differently.",
        "address_of(pass, task.sum.first_source + source);\n        if (address == 0) {\n          continue;",
        "address_of(pass, task.sum.first_source + task.sum.sources - 1 - source);\n"
        "        if (address == 0) {\n          continue;",
    ),
    kernel(
        "gpu-one-accumulator",
        "The squares of a vector go to one accumulator: the norm has other last bits than on CPUs.",
        "powers.template add_power<kSums>(i,",
        "powers.template add_power<kSums>(0,",
    ),
    kernel(
        "gpu-rounding-error-dropped",
        "What a sum of float64 squares loses by rounding is not kept.",
        "low_[i] += sum.low + low;",
        "low_[i] += low;",
        "reduce_team.cuh",
    ),
    kernel(
        "gpu-old-output-taken-for-a-gradient",
        "A sum to which nobody contributed keeps what its outputs held.",
        "      write_zeros<Format>(pass, item, task);\n",
        "",
    ),
    kernel(
        "gpu-replicas-not-compared",
        "Replicas that drift apart are not noticed.",
        "task.counted = !counted && pass.compare ? chunk.counted : 0;",
        "task.counted = 0;",
    ),
    kernel(
        "gpu-every-divisor-inverted",
        "A division by 3 is a multiplication by a rounded third.",
        "exact ? Division::ByReciprocal : Division::True",
        "Division::ByReciprocal",
    ),
    kernel(
        "gpu-nan-of-another-rank",
        "A value that is not finite is counted for the wrong rank.",
        "atomicAdd(inputs.nonfinite + place,",
        "atomicAdd(inputs.nonfinite + source,",
    ),
    kernel(
        "gpu-runs-side-by-side",
        "A shard that lies in the gradient in rows is read as if it lay together.",
        "item.source + run * item.distance + at",
        "item.source + run * item.run + at",
        "reduce_team.cuh",
    ),
    kernel(
        "gpu-first-sum-counted",
        "A replica without a contribution is counted, and the norm is 0.",
        "counted = !chunk.has_counted;",
        "counted = at == 0;",
    ),
    kernel(
        "gpu-scale-forgotten",
        "A sum that left the range is taken again without its scale.",
        "const double quotient = value / scale;",
        "const double quotient = value;",
        "reduce_powers.cu",
    ),
    lane(
        "gpu-unused-tensor-read",
        "The old gradient of a rank that did not use a tensor is added.",
        "unused ? 0 : address(plan.input_of(tensor, rank))",
        "address(plan.input_of(tensor, rank))",
    ),
    lane(
        "gpu-absent-tensor-written",
        "A tensor that nobody used gets zeros for a gradient.",
        "absent ? 0 : address(plan.output_of(tensor, rank))",
        "address(plan.output_of(tensor, rank))",
    ),
    lane(
        "gpu-zeros-multiplied",
        "A group whose norm is not finite is multiplied by its coefficient, and not set to zero.",
        "if (outcome.action == plan::StepAction::Zero) {",
        "if (outcome.action == plan::StepAction::Raise) {",
    ),
    lane(
        "gpu-tied-copy-not-multiplied",
        "The clip multiplies a tied tensor once more, and its copy never.",
        "written ? address(plan.output_of(plan.memory_of(part.tensor, output.member), output.member.rank)) : 0;",
        "written ? address(plan.output_of(part.tensor, output.member.rank)) : 0;",
    ),
    lane(
        "gpu-difference-of-another-sum",
        "Ranks that agree are named for those that drifted apart.",
        "if (differs_[first_sum_[part] + sum] == 0) {",
        "if (differs_[first_sum_[part]] == 0) {",
    ),
    lane(
        "gpu-reports-before-the-device-is-done",
        "The lane says that gradients are multiplied while the device still writes them.",
        '  library_.must(library_.wait(), "multiplying");  // the report says that gradients may be read\n',
        "",
    ),
    lane(
        "gpu-sums-of-before",
        "Sums that were taken again are not used.",
        "        plan.attempt().chunk_stats[index].power_sum = {results_[index].high, results_[index].low};\n",
        "",
    ),
)
