"""What one rank of a live test does: its cases, one after the other, each of which leaves a file. For the *_rank.py.

The command line is that of live_world.run_live: RANK WORLD_SIZE FOLDER [CASE …].
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import gradsync.torch as gst


def run_cases(job: str, cases: Mapping[str, Callable[[], dict[str, Any]]]) -> None:
    """Runs the cases that the command line names, or all of them. One that raises leaves its traceback."""
    rank, world_size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    os.environ["TORCHELASTIC_RUN_ID"] = job
    dist.init_process_group("gloo", rank=rank, world_size=world_size, init_method=f"file://{folder}/store")
    for name in sys.argv[4:] or cases:
        try:
            result = cases[name]()
        except Exception:
            gst.close()
            result = {"error": traceback.format_exc()}
        (folder / f"{name}.{rank}.json").write_text(json.dumps(result))
        dist.barrier()
    dist.destroy_process_group()
