"""Starts the ranks of a live test as real processes and reads what they wrote: one JSON file per case and rank."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    with contextlib.ExitStack() as logs:
        ranks = [
            subprocess.Popen(
                [sys.executable, path, str(rank), str(world_size), str(folder)],
                env={**kept, "GRADSYNC_ADDRESS": address, "RANK": str(rank), "WORLD_SIZE": str(world_size)},
                stdout=subprocess.DEVNULL,
                stderr=logs.enter_context((folder / f"log.{rank}").open("w")),
            )
            for rank in range(world_size)
        ]
        try:
            for rank, process in enumerate(ranks):
                assert process.wait(DEADLINE_S) == 0, (folder / f"log.{rank}").read_text()[-3000:]
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
                process.wait(DEADLINE_S)
    return Live(folder, world_size)
