"""The program that times the clip of what FSDP2 and DDP reduced, on memory of CPUs and the emulated library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from daemon import BINARY, DEADLINE_S, clean_environment
from gpu_ranks import KERNELS

pytest.importorskip("torch")
PROGRAM = Path(__file__).parents[2] / "gpu" / "bench_clip.py"
SMALL = ("--emulate", "--samples", "2", "--layers", "3", "--width", "64")


def ran(folder: Path, kernels: str, *more: str) -> tuple[int, str, list[dict[str, Any]]]:
    file = folder / "clip.json"
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), *SMALL, "--kernels", kernels, "--json", str(file), *more],
        env=clean_environment(GRADSYNCD=BINARY),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=4 * DEADLINE_S,
    )
    results: list[dict[str, Any]] = json.loads(file.read_text())
    return ended.returncode, ended.stdout, results


@pytest.mark.training
@pytest.mark.timeout(300)
def test_norms_and_products_of_both_frameworks_are_within_one_unit_in_the_last_place(tmp_path: Path) -> None:
    code, said, results = ran(tmp_path, str(KERNELS))
    assert code == 0, said
    kinds = ("unclipped", "clipped")
    cases = [f"{framework}_{dtype}" for framework in ("fsdp2", "ddp") for dtype in ("bfloat16", "float32")]
    assert [result["name"] for result in results] == [f"gpu_clip_{case}_{kind}" for case in cases for kind in kinds]
    for result in results:
        config = result["config"]
        assert config["norm_ulps"] <= 1
        assert config["product_ulps"] <= 1
        assert config["coefficient"] == pytest.approx(1 / 3, rel=1e-5)
        assert config["measured_by"].startswith("gradsync kernels ")
        assert config["tensors"] == 3
        assert len(result["samples"]["ours"]) == 2


@pytest.mark.rare
@pytest.mark.training
@pytest.mark.timeout(300)
def test_what_torch_measured_is_a_failure(tmp_path: Path) -> None:
    code, said, _ = ran(tmp_path, "off")
    assert code == 1
    assert "measured by torch" in said
