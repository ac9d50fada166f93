"""Faults in the communicators of a job over epochs, which take a world of several nodes and some time to be seen."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["COMMUNICATORS"]


def communicators(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "communicators", f"service/{file}", old, new)


COMMUNICATORS = (
    communicators(
        "communicators-outlive-an-epoch-that-did-not-begin",
        "What a node builds for an epoch that has ended is in the way of the next one, until it is too late.",
        "engine/job/job_load.cpp",
        "std::ranges::count(active_->offering, share.lane) != 0) {",
        "std::ranges::count(active_->offering, share.lane) > 1) {",
    ),
    communicators(
        "communicators-stream-given-back-too-early",
        "The stream of operations that were aborted is given back while they run.",
        "device/nccl/communicators.cpp",
        "    job.ending.push_back(std::move(job.queue));",
        "    job.queue.reset();",
    ),
)
