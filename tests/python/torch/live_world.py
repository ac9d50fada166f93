"""Starts the ranks of a live test as real processes and reads what they wrote: one JSON file per case and rank."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "integration"))

from warm_python import WarmProcess

DEADLINE_S = 300.0
Results = list[dict[str, Any]]


class Live:
    """What the ranks wrote, by case."""

    def __init__(self, folder: Path, world_size: int) -> None:
        self._folder = folder
        self._world_size = world_size

    def __getitem__(self, case: str) -> Results:
        found = [json.loads((self._folder / f"{case}.{rank}.json").read_text()) for rank in range(self._world_size)]
        for rank, result in enumerate(found):
            assert "error" not in result, f"rank {rank}: {result['error']}"
        return found


def run_live(script: str, world_size: int, address: str, folder: Path) -> Live:
    """`script rank world_size folder` on every rank, all at once."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GRADSYNC_", "TORCHELASTIC"))}
    path = str(Path(__file__).parent / script)
    run_ranks(
        [[path, str(rank), str(world_size), str(folder)] for rank in range(world_size)],
        [
            {**kept, "GRADSYNC_ADDRESS": address, "RANK": str(rank), "WORLD_SIZE": str(world_size)}
            for rank in range(world_size)
        ],
        folder,
    )
    return Live(folder, world_size)


def run_ranks(arguments: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]], folder: Path) -> None:
    """A process for each, which has to end with 0; its standard error is `folder`/log.N."""
    with contextlib.ExitStack() as open_files:
        nothing = open_files.enter_context(open(os.devnull, "r+"))
        processes = []
        for rank, (of_rank, env) in enumerate(zip(arguments, environments, strict=True)):
            log = open_files.enter_context((folder / f"log.{rank}").open("w"))
            processes.append(WarmProcess(of_rank, env, (nothing.fileno(), nothing.fileno(), log.fileno())))
            open_files.callback(processes[-1].close)
        try:
            for rank, process in enumerate(processes):
                assert process.wait(DEADLINE_S) == 0, (folder / f"log.{rank}").read_text()[-3000:]
        finally:
            for process in processes:
                process.kill()
                process.wait(DEADLINE_S)
