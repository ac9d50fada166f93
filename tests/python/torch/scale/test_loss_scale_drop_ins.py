"""torch's recipe with a scaler around `gst.clip_grad_norm_`: what one rank found, all know.

With a rank, a world size and a folder as arguments this file is one rank of the live case, a process of its own.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

sys.path.insert(0, str(Path(__file__).parents[1]))  # also run as a script, by its ranks
sys.path.insert(0, str(Path(__file__).parents[2]))

from drop_ins import Norms, copies, init, net
from live_world import DEADLINE_S, run_live

import gradsync.torch as gst
from gradsync import Clip
from gradsync.errors import ClipRaised, UsageError

WIDTH = 4


def new_scaler() -> GradScaler:
    return GradScaler("cpu", init_scale=8.0, growth_interval=3)


def backward(scaler: GradScaler, model: nn.Module) -> None:
    torch.manual_seed(1)
    scaler.scale(model(torch.randn(5, WIDTH)).square().sum()).backward()


# one rank, on a fake daemon


def answers(daemon: Any, norms: Norms, **fields: Any) -> None:
    def finish(params: dict[str, Any]) -> Any:
        norms.norm_compute(params)
        norms.daemon.attempt += 1
        return norms.answer(params, check_next=False, **fields)

    daemon.script["step.finish"] = finish


def test_the_recipe_is_torchs(daemon: Any, norms: Norms) -> None:
    trained = []
    for ours in (True, False):
        model, scaler = net(), new_scaler()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        if ours:
            init(daemon, model)
        for _ in range(5):
            backward(scaler, model)
            scaler.unscale_(optimizer)
            if ours:
                gst.clip_grad_norm_(model.parameters(), 1.0, scaler=scaler, optimizers=optimizer)
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        trained.append((model.state_dict(), scaler.state_dict()))
    torch.testing.assert_close(trained[0][0], trained[1][0])
    assert trained[0][1] == trained[1][1]
    assert all("scale" not in params for params in daemon.of("step.finish"))


@pytest.mark.parametrize("held", [True, False])
def test_what_another_rank_found_skips_here_too(daemon: Any, norms: Norms, held: bool) -> None:
    model, scaler = net(), new_scaler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    init(daemon, model, clip=Clip(nonfinite="raise"))
    answers(daemon, norms, norm="NaN", found_inf=True, skipped=True, action="skip")
    backward(scaler, model)
    if not held:
        model.zero_grad()  # a rank without gradients has nothing to look at
    before = [p.detach().clone() for p in model.parameters()]
    scaler.unscale_(optimizer)
    assert math.isnan(gst.clip_grad_norm_(model.parameters(), 1.0, scaler=scaler, optimizers=[optimizer]))
    scaler.step(optimizer)
    scaler.update()
    assert all(map(torch.equal, before, model.parameters()))
    assert scaler.get_scale() == 4.0
    assert daemon.of("step.finish")[-1]["scaled"] is True


def test_a_rank_without_gradients_may_step(daemon: Any, norms: Norms) -> None:
    model, scaler = net(), new_scaler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    init(daemon, model)
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)
    gst.clip_grad_norm_(model.parameters(), 1.0, scaler=scaler, optimizers=optimizer)
    scaler.step(optimizer)  # torch alone raises: it looked at nothing
    scaler.update()
    assert scaler.get_scale() == 8.0


def test_a_spike_raises_with_a_scaler_too(daemon: Any, norms: Norms) -> None:
    model, scaler = net(), new_scaler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    init(daemon, model, clip=Clip(max_norm=1.0, spike="raise"))
    answers(daemon, norms, action="raise", skipped=True)
    backward(scaler, model)
    scaler.unscale_(optimizer)
    with pytest.raises(ClipRaised):
        gst.clip_grad_norm_(model.parameters(), 1.0, scaler=scaler, optimizers=optimizer)


def test_gradients_that_still_have_the_scale_are_refused(daemon: Any, norms: Norms) -> None:
    model, scaler = net(), new_scaler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    init(daemon, model)
    backward(scaler, model)
    before = copies(model)
    with pytest.raises(UsageError, match=r"optimizers\[0\] \(SGD\): its gradients still have the scale"):
        gst.clip_grad_norm_(model.parameters(), 1.0, scaler=scaler, optimizers=optimizer)
    with pytest.raises(UsageError, match="optimizers=None with a scaler"):
        gst.clip_grad_norm_(model.parameters(), 1.0, scaler=scaler)
    with pytest.raises(UsageError, match=r"scaler=8\.0"):
        gst.clip_grad_norm_(model.parameters(), 1.0, scaler=8.0)
    assert daemon.of("step.finish") == []
    assert all(map(torch.equal, before, copies(model)))


def test_a_scaler_that_is_off_counts_as_none(daemon: Any, norms: Norms) -> None:
    model = net()
    init(daemon, model)
    backward(new_scaler(), model)
    assert gst.clip_grad_norm_(model.parameters(), 1.0, scaler=GradScaler("cpu", enabled=False)) > 0


# two stages of a pipeline, live


def stage(rank: int, world_size: int, told: bool) -> dict[str, Any]:
    """Three steps; in the second the gradients of stage 1 are not finite. Torch's scalers know their own stage."""
    torch.manual_seed(rank)
    model, scaler = nn.Module(), new_scaler()
    setattr(model, f"stage{rank}", nn.Linear(WIDTH, WIDTH))
    part = getattr(model, f"stage{rank}")
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    gst.init(model, mesh={"pp": world_size}, pp="pp", job=f"stages-{told}", rank=rank, world_size=world_size)
    moved, scales = [], []
    for step in range(3):
        backward(scaler, part)
        if (step, rank) == (1, 1):
            part.bias.grad[0] = math.inf
        before = part.weight.detach().clone()
        scaler.unscale_(optimizer)
        more = {"scaler": scaler, "optimizers": optimizer} if told else {}
        gst.clip_grad_norm_(model.parameters(), 1.0, **more)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        moved.append(not torch.equal(before, part.weight))
        scales.append(scaler.get_scale())
    gst.close()
    return {"moved": moved, "scales": scales}


@pytest.mark.training
@pytest.mark.timeout(DEADLINE_S)
def test_a_stage_does_not_step_where_another_may_not(real_daemon: str, tmp_path: Path) -> None:
    live = run_live(__file__, 2, real_daemon, tmp_path)
    assert live["told"] == [{"moved": [True, False, True], "scales": [8.0, 4.0, 4.0]}] * 2
    assert [result["scales"][-1] for result in live["alone"]] == [16.0, 4.0]  # scales that have come apart


if __name__ == "__main__":
    rank, world_size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    for name in ("told", "alone"):
        (folder / f"{name}.{rank}.json").write_text(json.dumps(stage(rank, world_size, name == "told")))
