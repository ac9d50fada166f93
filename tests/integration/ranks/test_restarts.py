"""Daemons killed and upgraded in the middle of runs: never a wrong gradient, and weights as of an undisturbed run.

GRADSYNC_DEMO_MODEL=whole trains the demo's own model, which takes minutes; else a smaller one, in as many steps.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from daemon import DEADLINE_S, TIMES, clean_environment
from restarts import CASES, WORLD, Lives, done_steps, end_at_random, start_rank

EXAMPLES = Path(__file__).parents[3] / "clients" / "python" / "examples"
HOW = (signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.rare))
SMALL = ("--batch", "1", "--context", "32", "--width", "64", "--layers", "2")
MODEL = () if os.environ.get("GRADSYNC_DEMO_MODEL") == "whole" else SMALL


def lost_steps(folder: Path) -> list[int]:
    return [int((folder / f"lost-{rank}").read_text()) for rank in range(WORLD)]


@pytest.mark.long
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("case", CASES)
def test_every_step_is_right_however_often_the_daemon_ends(case: str, how: signal.Signals, tmp_path: Path) -> None:
    steps = 25 * TIMES
    with Lives(tmp_path) as lives:
        ranks = [start_rank(case, lives.address, rank, steps, tmp_path) for rank in range(WORLD)]
        try:
            wanted = [steps * (k + 1) // (TIMES + 2) for k in range(TIMES)]

            def done() -> int:
                assert not any(rank.poll() for rank in ranks), "a rank has failed"
                return done_steps(tmp_path)

            end_at_random(lives, how, done, wanted, seed=len(case), within_s=0.02)
            assert [rank.wait(DEADLINE_S) for rank in ranks] == [0] * WORLD
        finally:
            for rank in ranks:
                rank.kill()
    assert len(lives.processes) == TIMES + 1
    lost = lost_steps(tmp_path)
    assert lost[0] == lost[1] <= TIMES, "a step is lost on every rank alike"
    if case.startswith("stats") or how == signal.SIGTERM:
        assert lost == [0] * WORLD, "nothing is written in place, or the daemon waits for the step"
    print(f"{how.name} in {case}: {lost[0]} of {TIMES} lost a step")


class Demo:
    """The training of `make demo`, without torch's beside it."""

    def __init__(self, folder: Path, address: str) -> None:
        self.prefix = folder / "demo"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(WORLD), "--standalone"),
                *(str(EXAMPLES / "train_char.py"), "--backend", "gradsync", "--json", str(self.prefix), *MODEL),
            ],
            env=clean_environment(GRADSYNC_ADDRESS=address, OMP_NUM_THREADS="1"),
            stdin=subprocess.DEVNULL,
        )

    def done(self) -> int:
        assert not self.process.poll(), "the training has failed"
        try:
            return Path(f"{self.prefix}.0").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def records(self) -> list[list[dict[str, object]]]:
        assert self.process.wait(5 * DEADLINE_S) == 0
        return [
            [json.loads(line) for line in Path(f"{self.prefix}.{rank}").read_text().splitlines()]
            for rank in range(WORLD)
        ]

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE_S)


def timeless(records: list[list[dict[str, object]]]) -> list[list[dict[str, object]]]:
    return [[{k: v for k, v in r.items() if k not in ("step_ms", "steps_lost")} for r in rank] for rank in records]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, object]]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    with Lives(folder) as lives, Demo(folder, lives.address) as demo:
        return demo.records()


@pytest.mark.long
@pytest.mark.parametrize("how", HOW)
def test_the_demo_has_the_same_bits_after_many_ends(
    how: signal.Signals, tmp_path: Path, undisturbed: list[list[dict[str, object]]]
) -> None:
    with Lives(tmp_path) as lives, Demo(tmp_path, lives.address) as demo:
        wanted = [3 + 9 * k for k in range(TIMES)]
        end_at_random(lives, how, demo.done, wanted, seed=int(how), within_s=0.2 if not MODEL else 0.05)
        records = demo.records()
    assert len(lives.processes) == TIMES + 1
    assert len(records[0]) == 201
    assert timeless(records) == timeless(undisturbed)
    assert records[0][-1]["steps_lost"] == records[1][-1]["steps_lost"]
