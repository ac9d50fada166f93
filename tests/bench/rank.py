"""One rank of one contender: answers `fill`, `step NANOSECONDS` and `quit`, one line of JSON each."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

import torch

# The last part of the wait is spun away: a sleep may end a whole tick late.
SPIN_NS = 1_000_000


def wait_until(when_ns: int) -> None:
    """All ranks begin a step at one moment of the clock they share."""
    while (left := when_ns - time.monotonic_ns()) > 0:
        if left > SPIN_NS:
            time.sleep((left - SPIN_NS) / 1e9)


def main() -> None:
    name, rank, world_size, arguments = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Whatever a library prints must not be taken for an answer.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world_size))
    contender = importlib.import_module(f"contenders.{name}").Contender(rank, world_size, **arguments)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        command, *when = line.split()
        if command == "fill":
            contender.fill()
            print(json.dumps({}), file=answers)
        elif command == "step":
            wait_until(int(when[0]))
            cpu_begin, begin = time.process_time_ns(), time.monotonic_ns()
            contender.step()
            end, cpu_end = time.monotonic_ns(), time.process_time_ns()
            took = {"seconds": (end - begin) / 1e9, "cpu_seconds": (cpu_end - cpu_begin) / 1e9}
            print(json.dumps({**took, "result": contender.result()}), file=answers)
        else:
            break
    contender.close()


if __name__ == "__main__":
    main()
