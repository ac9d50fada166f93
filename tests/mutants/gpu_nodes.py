"""Faults in what sums of GPUs over nodes are made of: passes between 16 bits and float32, and streams beside passes."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["GPU_NODES"]


def on_gpus(name: str, fault: str, path: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "gpu_nodes", path, old, new)


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
        "if (cudaStreamQuery(each->stream) == cudaErrorNotReady) {",
        "if (cudaStreamQuery(each->stream) != cudaErrorNotReady && each == nullptr) {",
    ),
    on_gpus(
        "gpu-nodes-mark-passed-at-once",
        "A collective counts as done as soon as it was launched.",
        _STREAM,
        "if (state == cudaErrorNotReady) {",
        "if (state == cudaErrorNotReady && marks.empty()) {",
    ),
)
