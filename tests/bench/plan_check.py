"""What `gradsyncd plan check` takes for 1,024 ranks of 1,000 tensors each, which FSDP shards: memory and time."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import results

RANKS = 1024
TENSORS = 1000
WANTED_MIB = 150
WANTED_S = 2.0

HEAD = {
    "gradsync_declaration": 1,
    "world_size": RANKS,
    "meshes": [{"name": "default", "axes": [{"name": "dp_shard", "size": RANKS}]}],
    "options": {"data_path": "stats", "clip": [{"group": "all", "max_norm": 1.0}]},
}


def shape_of(tensor: int) -> list[int]:
    """Matrices, norms, and a bias that some ranks have nothing of."""
    return [8192, 4096] if tensor % 10 < 7 else [4096] if tensor % 10 < 9 else [1000]


def local_shape(shape: list[int], rank: int) -> list[int]:
    """The rank's part along dim 0, as torch.chunk cuts it."""
    part = -(-shape[0] // RANKS)
    return [max(0, min(part, shape[0] - part * rank)), *shape[1:]]


@functools.cache
def tensors_text(has_bias: bool) -> str:
    tensors = [
        {
            "name": f"model.layers.{i // 10}.parameter_{i % 10}.weight",
            "shape": shape_of(i),
            "local_shape": local_shape(shape_of(i), 0 if has_bias else RANKS - 1),
            "dtype": "bfloat16",
            "mesh": "default",
            "placements": [{"axes": ["dp_shard"], "kind": "shard", "dim": 0}],
            "layer": f"layers.{i // 10}",
        }
        for i in range(TENSORS)
    ]
    return json.dumps(tensors, separators=(",", ":"))


def write_file(path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(HEAD) + "\n")
        for rank in range(RANKS):
            file.write(f'{{"rank":{rank},"tensors":{tensors_text(local_shape([1000], rank) != [0])}}}\n')


def check(binary: str, path: str) -> tuple[float, float]:
    """Seconds, and the most memory in MiB. A process begins with the peak of its parent, which has to be small."""
    begin = time.perf_counter()
    with subprocess.Popen([binary, "plan", "check", path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        answer = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or f"ok: {RANKS} ranks, {TENSORS} tensors" not in answer:
        raise RuntimeError(f"exit code {process.returncode}: {answer}")
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def checked_apart(binary: Path, path: Path) -> tuple[float, float]:
    done = subprocess.run([sys.executable, __file__, binary, path], stdout=subprocess.PIPE, text=True, check=True)
    seconds, memory = json.loads(done.stdout)
    return seconds, memory


def run(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    samples, seconds = [], []
    with tempfile.TemporaryDirectory(prefix="gradsync-bench-") as folder:
        path = Path(folder) / "job.jsonl"
        write_file(path)
        for number in range(rounds):
            taken, memory = checked_apart(binaries / "gradsyncd", path)
            samples.append(round(memory, 1))
            seconds.append(round(taken, 3))
            print(f"{name}: round {number + 1}/{rounds}: {taken:.2f} s, {memory:.0f} MiB", flush=True)
    config = {"ranks": RANKS, "tensors": TENSORS, "rounds": rounds, "seconds": seconds}
    bars = [
        results.Bar("most memory", max(samples), WANTED_MIB, unit="MiB"),
        results.Bar("fastest round", min(seconds), WANTED_S, unit="s"),
    ]
    return results.write(name, "MiB", samples, {}, None, config, bars)


if __name__ == "__main__":
    print(json.dumps(check(sys.argv[1], sys.argv[2])))
