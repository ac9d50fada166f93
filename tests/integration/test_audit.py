"""`gradsync audit` on scripts as users write them: right ones and wrong ones, in real processes over Gloo.

This file is also those scripts (`test_audit.py CASE`), and starts ranks of them without torchrun
(`test_audit.py ranks N CASE`), which saves an import of torch per test.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from daemon import BINARY, clean_environment

STEPS = 2
DEADLINE_S = 100.0
CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


# what the ranks do


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def blocks() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.LayerNorm(9), nn.Linear(9, 5))


def train(model: Any, clip: Callable[[], Any], seed: int, dtype: Any = None) -> list[Any]:
    """Three steps; the audit sees two of them."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    norms = []
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS + 1):
        batch = torch.randn(3, 7, generator=generator)
        model(batch if dtype is None else batch.to(dtype)).float().square().sum().backward()
        norms.append(clip())
        optimizer.step()
        optimizer.zero_grad()
    return norms


@case
def ddp() -> None:
    """Writes all that could have changed."""
    import torch
    from torch import nn
    from torch.nn.utils import clip_grad_norm_

    model = nn.parallel.DistributedDataParallel(blocks())
    torch.manual_seed(1)
    norms = train(model, lambda: clip_grad_norm_(model.parameters(), 1.0), rank())
    found = hashlib.sha256()
    for tensor in (*model.parameters(), *norms, torch.get_rng_state(), torch.rand(3)):
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    if "WRITE_TO" in os.environ:
        Path(os.environ["WRITE_TO"], f"rank-{rank()}").write_text(found.hexdigest())


@case
def fsdp2() -> None:
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp_shard", "tp"))
    model = blocks()
    for block in model:
        fully_shard(block, mesh=mesh["dp_shard"])
    fully_shard(model, mesh=mesh["dp_shard"])
    train(model, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), rank())


@case
def fsdp1() -> None:
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(blocks(), device_id=torch.device("cpu"))
    train(model, lambda: model.clip_grad_norm_(1.0), rank())


def stage() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(rank())
    return nn.Sequential(nn.Linear(7, 7 + rank()))


@case
def pipeline_that_forgets_pp() -> None:
    from torch import nn

    part = stage()
    train(part, lambda: nn.utils.clip_grad_norm_(part.parameters(), 1.0), 0)


@case
def copies_that_nobody_reduced() -> None:
    from torch import nn

    model = blocks()
    train(model, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), rank())


@case
def pipeline_on_a_device_mesh() -> None:
    """As torchtitan does it: the norm of the stage, then over pp; the mesh says what pp is."""
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    part = stage()

    def clip() -> None:
        norm = nn.utils.get_total_norm([p.grad for p in part.parameters()]).square()
        dist.all_reduce(norm, group=mesh.get_group())
        nn.utils.clip_grads_with_norm_(part.parameters(), 1.0, norm.sqrt())

    train(part, clip, 0)


@case
def pipeline_with_the_line() -> None:
    from torch import nn

    import gradsync.torch as gst

    part = stage()
    audit = gst.audit(part, mesh={"pp": 2}, pp="pp", steps=STEPS, json=os.environ.get("WRITE_TO"))
    train(part, lambda: nn.utils.clip_grad_norm_(part.parameters(), 1.0), 0)
    audit.close()
    assert audit.exit_code == (1 if rank() == 0 and "GRADSYNC_AUDIT" not in os.environ else None), audit.exit_code


@case
def pipeline_of_its_own_norm() -> None:
    """A right one, which torch's functions see nothing of."""
    import torch
    import torch.distributed as dist

    import gradsync.torch as gst

    part = stage()
    gst.init(part, mesh={"pp": 2}, job="observed")  # observes: it is audited

    def clip() -> None:
        norm = torch.stack([p.grad.norm() for p in part.parameters()]).norm().square()
        dist.all_reduce(norm)
        gst.observe(norm.sqrt())
        for parameter in part.parameters():
            parameter.grad.mul_(torch.clamp(1.0 / norm.sqrt(), max=1.0))

    train(part, clip, 0)


@case
def experts_summed_twice() -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    model = nn.Module()
    torch.manual_seed(0)
    model.dense = nn.Parameter(torch.randn(4, 3))
    torch.manual_seed(1 + rank())
    model.experts = nn.Parameter(torch.randn(2, 3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS + 1):
        model.dense.grad = torch.full((4, 3), 0.5 + step)
        model.experts.grad = torch.full((2, 3, 2), 1.0 + rank() + step)
        experts = nn.utils.get_total_norm([model.experts.grad]).square()
        dist.all_reduce(experts)
        dist.all_reduce(experts)  # once too often
        norm = (nn.utils.get_total_norm([model.dense.grad]).square() + experts).sqrt()
        nn.utils.clip_grads_with_norm_([model.dense], 1.0, norm)
        nn.utils.clip_grads_with_norm_([model.experts], 1.0, norm)
        optimizer.step()


@case
def bfloat16() -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(7, 7) for _ in range(20))).bfloat16()
    train(model, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e9), 0, torch.bfloat16)


@case
def overflow() -> None:
    import torch
    from torch import nn

    model = nn.Linear(3, 2)
    for _ in range(STEPS + 1):  # without an optimizer a step is over when the next one clips
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1e25)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


@case
def fails_by_itself() -> None:
    overflow()
    os._exit(7)


@case
def clips_nothing() -> None:
    import torch

    assert torch.ones(1).sum() == 1


@case
def waits_for_a_signal() -> None:
    overflow()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
    print("waiting", flush=True)
    signal.pause()


def run_case(name: str) -> None:
    if "WORLD_SIZE" in os.environ:
        import torch.distributed as dist

        store = os.environ.get("STORE")
        method = {} if store is None else {"init_method": f"file://{store}", "rank": rank()}
        dist.init_process_group("gloo", **method, **({"world_size": int(os.environ["WORLD_SIZE"])} if method else {}))
        CASES[name]()
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)  # Gloo's threads end some processes by an abort, with and without an audit
    CASES[name]()


def run_ranks(count: int, name: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        shared = {**os.environ, "WORLD_SIZE": str(count), "STORE": f"{folder}/store", "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen([sys.executable, __file__, name], env={**shared, "RANK": str(number)})
            for number in range(count)
        ]
        return max(process.wait() for process in ranks)


# the tests


def audit(
    *command: str, options: tuple[str, ...] = (), json_file: Path | None = None, **environment: str
) -> tuple[int, str, dict[str, Any]]:
    extra = () if json_file is None else ("--json", str(json_file))
    done = subprocess.run(
        [sys.executable, "-m", "gradsync", "audit", "--steps", str(STEPS), *options, *extra, "--", *command],
        env=clean_environment(**{"GRADSYNCD": BINARY, "OMP_NUM_THREADS": "1"} | environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    found = json.loads(json_file.read_text()) if json_file is not None and json_file.exists() else {}
    return done.returncode, done.stdout + done.stderr, found


def ranks_of(count: int, name: str) -> list[str]:
    return [sys.executable, __file__, "ranks", str(count), name]


def one(name: str) -> list[str]:
    return [sys.executable, __file__, name]


def whole(found: dict[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = found["lines"][0]
    assert line["name"] == "whole model"
    return line


def test_fsdp2_under_torchrun_agrees(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    code, said, found = audit(*torchrun, __file__, "fsdp2", json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert whole(found)["verdict"] == "agrees"
    assert [(line["name"], line["tensors"]) for line in found["lines"][1:]] == [("over dp_shard", 6)]
    assert found["steps"] == STEPS
    assert found["ranks"] == 2
    assert not found["findings"]
    assert "whole model" in said


def test_ddp_agrees_and_no_bit_of_the_run_changes(tmp_path: Path) -> None:
    for folder in ("plain", "audited"):
        (tmp_path / folder).mkdir()
    plain = clean_environment(WRITE_TO=str(tmp_path / "plain"))
    subprocess.run(ranks_of(2, "ddp"), env=plain, timeout=DEADLINE_S, check=True)
    code, said, found = audit(
        *ranks_of(2, "ddp"), json_file=tmp_path / "verdict.json", WRITE_TO=str(tmp_path / "audited")
    )
    assert code == 0, said
    assert whole(found)["verdict"] == "agrees"
    assert found["lines"][1]["name"] == "copied to all ranks"
    for number in range(2):
        name = f"rank-{number}"
        assert (tmp_path / "plain" / name).read_text() == (tmp_path / "audited" / name).read_text()


def test_the_method_of_fsdp1_agrees(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "fsdp1"), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert [(line["name"], line["verdict"]) for line in found["lines"]] == [
        ("whole model", "agrees"),
        ("over dp_shard", "agrees"),
    ]


def test_copies_that_nobody_reduced_are_named(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "copies_that_nobody_reduced"), json_file=tmp_path / "verdict.json")
    assert code == 1, said
    assert [cause["kind"] for cause in whole(found)["causes"]] == ["replicas_differ"]
    assert any("'0.weight'" in finding and "not reduced alike" in finding for finding in found["findings"])


def test_a_pipeline_by_hand_is_said_plainly_not_to_be_known() -> None:
    code, said, _ = audit(*ranks_of(2, "pipeline_that_forgets_pp"))
    assert code == 2
    assert "nothing could be audited" in said
    assert "gradsync.torch.audit(model" in said
    assert "--mesh pp=2" in said


def test_a_pipeline_on_a_device_mesh_needs_no_word(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "pipeline_on_a_device_mesh"), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert whole(found)["verdict"] == "agrees"
    assert whole(found)["tensors"] == 4  # two of one name are two


def check_the_forgotten_pipeline(found: dict[str, Any]) -> None:
    line = whole(found)
    assert line["verdict"] == "differs"
    assert [(cause["kind"], cause["axis"]) for cause in line["causes"]] == [("axis_missing", "pp")]
    assert len(line["theirs"]) == 2
    assert any("ranks clip by different norms" in finding for finding in found["findings"])


def test_a_pipeline_that_forgets_pp_is_named_with_a_flag(tmp_path: Path) -> None:
    code, said, found = audit(
        *ranks_of(2, "pipeline_that_forgets_pp"), options=("--mesh", "pp=2"), json_file=tmp_path / "verdict.json"
    )
    assert code == 1, said
    check_the_forgotten_pipeline(found)


def test_the_line_in_the_script_gives_the_same_under_the_command(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "pipeline_with_the_line"), json_file=tmp_path / "verdict.json")
    assert code == 1, said
    check_the_forgotten_pipeline(found)


def test_the_line_in_the_script_gives_the_same_without_the_command(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    environment = clean_environment(GRADSYNCD=BINARY, WRITE_TO=str(path))
    command = ranks_of(2, "pipeline_with_the_line")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    check_the_forgotten_pipeline(json.loads(path.read_text()))
    assert "axis_missing" in done.stdout


def test_a_script_with_a_norm_of_its_own_tells_it(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "pipeline_of_its_own_norm"), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert whole(found)["verdict"] == "agrees"
    assert found["lines"][1]["name"] == "over pp"


def test_experts_that_are_summed_twice_are_named(tmp_path: Path) -> None:
    options = ("--mesh", "ep=2", "--ep", "experts:slice")
    code, said, found = audit(
        *ranks_of(2, "experts_summed_twice"), options=options, json_file=tmp_path / "verdict.json"
    )
    assert code == 1, said
    line = whole(found)
    assert [(cause["kind"], cause["groups"]) for cause in line["causes"]] == [("summed_twice", ["experts, over ep"])]
    verdicts = {group["name"]: group["verdict"] for group in found["lines"][1:]}
    assert verdicts == {"experts, over ep": "differs", "copied to all ranks": "agrees"}


def test_a_norm_in_bfloat16_is_named(tmp_path: Path) -> None:
    code, said, found = audit(*one("bfloat16"), json_file=tmp_path / "verdict.json")
    assert code == 1, said
    assert [cause["kind"] for cause in whole(found)["causes"]] == ["low_precision"]
    assert "bfloat16" in said


def test_squares_that_overflow_are_named_and_a_failed_command_goes_before(tmp_path: Path) -> None:
    code, said, found = audit(*one("overflow"), json_file=tmp_path / "verdict.json")
    assert code == 1, said
    assert [cause["kind"] for cause in whole(found)["causes"]] == ["overflow"]
    assert whole(found)["theirs"] == ["Infinity"]
    assert audit(*one("fails_by_itself"))[0] == 7


def test_a_command_that_does_not_clip_is_2_and_says_why() -> None:
    code, said, _ = audit(*one("clips_nothing"))
    assert code == 2
    assert "no process called clip_grad_norm_" in said


def test_stop_ends_the_command_after_the_steps() -> None:
    code, said, _ = audit(*one("waits_for_a_signal"), options=("--stop",))
    assert code == 1, said
    assert "overflow" in said


def test_a_signal_reaches_the_command() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "gradsync", "audit", "--steps", "2", "--", *one("waits_for_a_signal")],
        env=clean_environment(GRADSYNCD=BINARY),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "waiting\n" in iter(process.stdout.readline, "")
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(DEADLINE_S) == 5


def test_processes_without_torch_stay_without_it_and_keep_their_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.theirs = __name__\n")
    script = "import sys; print(theirs, 'torch' in sys.modules, 'gradsync' in sys.modules)"
    _, said, _ = audit(sys.executable, "-c", script, PYTHONPATH=str(tmp_path))
    assert "sitecustomize False False\n" in said


def test_without_a_daemon_nothing_is_started(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    code, said, _ = audit("touch", str(mark), GRADSYNCD=str(tmp_path / "none"))
    assert code == 2
    assert "GRADSYNCD" in said
    assert not mark.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--steps", "0"), "give 1 or more"), (("--mesh", "pp"), "pp=2,dp=4"), (("--ep", "x"), "own")],
)
def test_wrong_arguments_say_what_is_right(options: tuple[str, ...], message: str) -> None:
    code, said, _ = audit("true", options=options)
    assert code == 2
    assert message in said


if __name__ == "__main__":
    if sys.argv[1] == "ranks":
        sys.exit(run_ranks(int(sys.argv[2]), sys.argv[3]))
    run_case(sys.argv[1])
