"""The torch adapter in real processes: torchrun beside a private daemon, against live DDP over Gloo.

This file is also the program that the ranks run: `python test_torch_training.py CASE`.
"""

from __future__ import annotations

import copy
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "clients" / "python" / "examples"
DEADLINE_S = 300
CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


# what the ranks do


def rank() -> int:
    return int(os.environ["RANK"])


def follow_ddp(make, losses, *, steps: int = 4, accumulate: int = 1, find_unused: bool = False) -> None:
    """The same model by gradsync and by DDP: gradients and norms of every step, from equal weights each time."""
    import torch
    from torch import distributed, nn

    import gradsync
    import gradsync.torch as gst

    torch.manual_seed(0)
    ours = make()
    theirs = nn.parallel.DistributedDataParallel(
        copy.deepcopy(ours), gradient_as_bucket_view=True, find_unused_parameters=find_unused
    )
    optimizer = torch.optim.AdamW(ours.parameters(), lr=1e-2)
    with gst.attach(ours, accumulate=accumulate, clip=gradsync.Clip(max_norm=0.5), formula="torch") as gs:
        for step in range(steps):
            theirs.module.load_state_dict(ours.state_dict())
            theirs.zero_grad()
            for micro in range(accumulate):
                made = torch.Generator().manual_seed(100 * step + 10 * rank() + micro)
                inputs = torch.randn(4, 6, generator=made)
                (losses(ours, inputs, step) / accumulate).backward()
                if micro < accumulate - 1:
                    with theirs.no_sync():
                        (losses(theirs, inputs, step) / accumulate).backward()
                else:
                    (losses(theirs, inputs, step) / accumulate).backward()
            norm = float(nn.utils.clip_grad_norm_(theirs.parameters(), 0.5))
            report = gs.finish()
            assert abs(report.norm - norm) <= 1e-6 * norm, (report.norm, norm)
            for (name, our), their in zip(ours.named_parameters(), theirs.module.parameters(), strict=True):
                if our.grad is None:
                    assert name in report.absent
                    continue
                difference = (our.grad.double() - their.grad.double()).norm() / their.grad.double().norm().clamp_min(
                    1e-30
                )
                assert difference <= 1e-6, (name, float(difference))
            optimizer.step()
            ours.zero_grad()
        states: list = [None] * distributed.get_world_size()
        distributed.all_gather_object(states, [p.tolist() for p in ours.parameters()])
        assert all(state == states[0] for state in states)
        if not find_unused:
            assert gs.stats().launched_early > 0


def small():
    from torch import nn

    return nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 3))


@case
def plain() -> None:
    follow_ddp(small, lambda model, x, step: model(x).square().mean())


@case
def accumulated() -> None:
    follow_ddp(small, lambda model, x, step: model(x).square().mean(), accumulate=3)


@case
def convolutions_in_channels_last() -> None:
    import torch
    from torch import nn

    def make():
        return nn.Sequential(nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Conv2d(4, 2, 2)).to(memory_format=torch.channels_last)

    def loss(model, x, step):
        return model(x.view(1, 1, 4, 6).repeat(2, 3, 2, 1).to(memory_format=torch.channels_last)).square().mean()

    follow_ddp(make, loss)


@case
def unused_here_or_everywhere() -> None:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
            return self.a(x) + self.b(x) if rank() == step % 2 else self.a(x)

    follow_ddp(Model, lambda model, x, step: model(x, step).square().mean(), find_unused=True)


@case
def data_loader_workers() -> None:
    """Forked workers begin and end while the rank trains; none of them holds its memory or ends its session."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import gradsync.torch as gst

    torch.manual_seed(0)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(32, 6))
    with gst.attach(model) as gs:
        steps = 0
        for _ in range(2):
            for (inputs,) in DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="fork"):
                model(inputs).square().mean().backward()
                gs.step(optimizer)
                steps += 1
        assert gs.stats().steps == steps == 8


@case
def compiled_by_inductor() -> None:
    import torch

    import gradsync.torch as gst

    torch.manual_seed(0)
    model = small()
    plain = copy.deepcopy(model)
    compiled = torch.compile(model)
    inputs = torch.randn(4, 6)
    plain(inputs).square().mean().backward()
    with gst.attach(compiled) as gs:
        for _ in range(2):
            model.zero_grad()
            compiled(inputs).square().mean().backward()
            gs.finish()
            for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-7)


@case
def a_killed_rank() -> None:
    """The others get a typed error that names it, and no gradient is left for the optimizer."""
    import torch

    import gradsync.torch as gst
    from gradsync.errors import RankLost

    torch.manual_seed(0)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gs = gst.attach(model)
    for step in range(3):
        model(torch.randn(4, 6)).square().mean().backward()
        if step == 2 and rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if step < 2:
            gs.step(optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RankLost) as lost:
        gs.step(optimizer)
    assert lost.value.ranks == (1,)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    Path(os.environ["RESULT"]).write_text("lost rank 1")


def main() -> None:
    warnings.simplefilter("error", UserWarning)
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    if "killed" not in sys.argv[1]:
        warnings.filterwarnings("ignore", module="torch")
        distributed.init_process_group("gloo")
    CASES[sys.argv[1]]()
    if distributed.is_initialized():
        distributed.barrier()
    # The interpreter's end is left out: once in many runs a thread of Gloo outlives its process group there and aborts.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# the tests


@pytest.fixture(scope="module")
def gradsyncd() -> str:
    binary = os.environ.get("GRADSYNCD") or str(ROOT / "build" / "cpu-release" / "bin" / "gradsyncd")
    if not os.access(binary, os.X_OK):
        pytest.skip("no gradsyncd binary: build it, or set GRADSYNCD")
    return binary


def torchrun(
    gradsyncd: str, ranks: int, script: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess:
    command = [gradsyncd, "run", "--", sys.executable, "-m", "torch.distributed.run", "--standalone"]
    defaults = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*command, f"--nproc-per-node={ranks}", str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=os.environ | defaults | environment,
    )


@pytest.mark.long
@pytest.mark.timeout(DEADLINE_S + 10)
@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("plain", 2),
        pytest.param("plain", 3, marks=pytest.mark.rare),
        pytest.param("accumulated", 2, marks=pytest.mark.rare),
        ("accumulated", 3),
        pytest.param("convolutions_in_channels_last", 2, marks=pytest.mark.rare),
        ("unused_here_or_everywhere", 2),
        ("data_loader_workers", 2),
    ],
)
def test_ranks_as_processes(gradsyncd, name, ranks):
    done = torchrun(gradsyncd, ranks, Path(__file__), name)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.long
@pytest.mark.timeout(DEADLINE_S + 10)
def test_a_module_compiled_by_inductor(gradsyncd):
    if shutil.which("g++") is None and shutil.which("c++") is None:
        pytest.skip("inductor needs a C++ compiler")
    done = torchrun(gradsyncd, 1, Path(__file__), "compiled_by_inductor")
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.training
@pytest.mark.timeout(DEADLINE_S + 10)
def test_a_rank_killed_in_a_step_is_named_to_the_others(gradsyncd, tmp_path):
    result = tmp_path / "result"
    torchrun(gradsyncd, 2, Path(__file__), "a_killed_rank", RESULT=str(result))
    assert result.read_text() == "lost rank 1"


@pytest.mark.training
@pytest.mark.timeout(DEADLINE_S + 10)
def test_the_minimal_example(gradsyncd):
    done = torchrun(gradsyncd, 2, EXAMPLES / "minimal.py")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("step 19: loss") == 2  # two ranks share the stream, and sometimes a line


@pytest.mark.long
@pytest.mark.timeout(DEADLINE_S + 10)
def test_the_demo_writes_its_report_and_curves(gradsyncd, tmp_path):
    import json

    done = subprocess.run(
        [
            sys.executable,
            str(EXAMPLES / "demo.py"),
            "--steps=20",
            f"--gradsyncd={gradsyncd}",
            f"--out={tmp_path / 'out'}",
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["world_size"] == 2
    assert report["steps"] == 20
    assert report["clipped_steps"] > 0
    assert report["ranks_bit_equal"] is True
    assert all(report[f"max_rel_{what}_diff"] <= 1e-5 for what in ("grad", "norm", "loss"))
    assert report["ours_step_ms"] > 0
    assert report["torch_step_ms"] > 0
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")


if __name__ == "__main__":
    main()
