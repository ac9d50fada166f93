"""Runs a script with the gradients of attached modules in memory of an emulated GPU: `python gpu_training.py SCRIPT …`.

The modules stay on the CPU, because this torch has no GPU; the emulated GPU's memory is memory that both can read."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import gradsync.torch._synced._attach as attach

if __name__ == "__main__":
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    if "GRADSYNC_LIBCUDA" in os.environ:
        attach._memory_of = lambda found: "cuda"
    runpy.run_path(sys.argv[0], run_name="__main__")
