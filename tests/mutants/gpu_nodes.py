"""Faults in the sums of GPUs over nodes: passes between 16 bits and float32, streams beside those of passes, and the
blocks of a plan in a GPU's memory."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["GPU_NODES"]


def on_gpus(name: str, fault: str, path: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "gpu_nodes", path, old, new)


_BLOCKS = "service/device/gpu/gpu_blocks.cpp"
_PLAN = "service/device/gpu/gpu_plan.cpp"
_STREAM = "kernels/library/library_stream.cu"

GPU_NODES = (
    on_gpus(
        "gpu-nodes-plus-zero",
        "A node whose ranks contributed nothing adds +0.0 to a sum of -0.0.",
        "kernels/reduce/reduce.cu",
        "pass.minus_zeros = bucket.minus_zeros;",
        "pass.minus_zeros = false;",
    ),
    on_gpus(
        "gpu-nodes-half-a-source",
        "Of eight float32 that become 16 bits the last four are the first four again.",
        "kernels/reduce/reduce_kernel.cuh",
        "load_at<In>(from + v * sizeof(uint4), piece)",
        "load_at<In>(from, piece)",
    ),
    on_gpus(
        "gpu-nodes-free-waits",
        "Memory is freed at once: the lane waits for a collective whose peer is gone, and cannot abort it.",
        _STREAM,
        "return expects || look() == cudaErrorNotReady;",
        "return expects && look() != cudaErrorNotReady && false;",
    ),
    on_gpus(
        "gpu-nodes-close-waits",
        "Memory of a rank is closed at once, with the same end.",
        "kernels/library/library_memory.cu",
        'must(give_back(base, cudaIpcCloseMemHandle), "closing a memory handle")',
        'must(cudaIpcCloseMemHandle(base), "closing a memory handle")',
    ),
    on_gpus(
        "gpu-nodes-launch-unnoticed",
        "A stream on which NCCL is about to launch counts as empty, so memory is freed behind the launch.",
        _STREAM,
        "stream->expects = true;",
        "stream->expects = false;",
    ),
    on_gpus(
        "gpu-nodes-mark-passed-at-once",
        "A collective counts as done as soon as it was launched.",
        _STREAM,
        "; state != cudaSuccess) {",
        "; state != cudaSuccess && state != cudaErrorNotReady) {",
    ),
    on_gpus(
        "gpu-nodes-written-by-nobody",
        "A gradient that no rank has is written from staging memory.",
        _BLOCKS,
        "table_.place(place++, contributed ? output : nullptr);",
        "table_.place(place++, output);",
    ),
    on_gpus(
        "gpu-nodes-unused-gradient-summed",
        "The old gradient of a rank that did not use a tensor travels.",
        _BLOCKS,
        "unused ? nullptr : input",
        "input",
    ),
    on_gpus(
        "gpu-nodes-every-replica-counted",
        "A sum that another node counts is in the norm of this one as well.",
        _PLAN,
        "together(held) || (part == parts.begin && plan_.nodes()->is_here(held, 0))",
        "true",
    ),
    on_gpus(
        "gpu-nodes-nan-of-nobody",
        "Whose value was not finite is not said.",
        "service/device/gpu/gpu_table.cpp",
        "if ((result.found & GRADSYNC_FOUND_NONFINITE) != 0) {",
        "if ((result.found & GRADSYNC_FOUND_NONFINITE) == 0 && nonfinite_.empty()) {",
    ),
)
