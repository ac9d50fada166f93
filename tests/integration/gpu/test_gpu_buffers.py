"""Gradients in memory of a GPU: trainers export it, the daemon's worker maps it and reduces it there.

The GPU is emulated: a driver whose memory is a memfd, and the kernels compiled for CPUs. Trainers, client, daemon,
worker, protocol and every mapping are real."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import DEADLINE_S, TIMES, Daemon, clean_environment, run_command
from gpu_ranks import DRIVER, GPUS, NEEDED, OFFSET, GpuRank, all_do, mappings_in, options, until, workers_of
from restarts import Lives

pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[3] / "clients" / "python" / "examples"


@contextlib.contextmanager
def ranks_on(address: str, job: str = "job", world: int = 2, **env: str) -> Iterator[list[GpuRank]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(GpuRank(address, job, rank, world, **env)) for rank in range(world)]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(*options()) as running:
        yield running


def worker_of(daemon: Daemon) -> int:
    (worker,) = workers_of(daemon.process.pid)
    return worker


def mapped_by(daemon: Daemon) -> int:
    """What all its workers have mapped."""
    return sum(map(mappings_in, workers_of(daemon.process.pid)))


def test_bits_are_those_of_memory_of_cpus(daemon: Daemon) -> None:
    results = {}
    for device in ("cpu", "cuda"):
        with ranks_on(daemon.socket, f"bits-{device}") as ranks:
            assert all("digest" in answer for answer in all_do(ranks, "declare", device=device))
            results[device] = [all_do(ranks, "step", seed=seed) for seed in range(6)]
            all_do(ranks, "detach")
    assert results["cuda"] == results["cpu"]
    assert all(first["bits"] == second["bits"] and first["clipped"] for first, second in results["cuda"])
    assert len({step[0]["bits"] for step in results["cuda"]}) == 6
    until(lambda: mapped_by(daemon) == 0, "everything is unmapped")


@pytest.mark.long
def test_memory_of_the_caller_gets_the_bits_of_an_arena_of_its_own(daemon: Daemon) -> None:
    results = {}
    for memory in (None, "whole", "part"):
        with ranks_on(daemon.socket, f"bits-{memory}") as ranks:
            device = "cuda" if memory is None else "cpu"
            assert all("digest" in answer for answer in all_do(ranks, "declare", device=device, memory=memory))
            assert mapped_by(daemon) == 2
            results[memory] = [all_do(ranks, "step", seed=seed) for seed in range(6)]
            if memory == "part":
                assert all_do(ranks, "beside") == [{"as_before": True}] * 2
            all_do(ranks, "detach")
            until(lambda: mapped_by(daemon) == 0, "everything is unmapped")
    assert results["whole"] == results[None]
    assert results["part"] == results[None]


def test_memory_of_the_caller_lives_until_another_declaration_takes_its_place(daemon: Daemon) -> None:
    with ranks_on(daemon.socket, "dropped") as ranks:
        right = None
        for memory in ("part", "whole", "part"):
            assert all("digest" in answer for answer in all_do(ranks, "declare", memory=memory, keep=False))
            steps = [all_do(ranks, "step", seed=seed) for seed in range(2)]
            assert steps == (right or steps)
            right = steps
            assert [mappings_in(rank.pid) for rank in ranks] == [1, 1], "that of the declaration in force"
            until(lambda: mapped_by(daemon) == 2, "what was declared before is unmapped")
        all_do(ranks, "detach")
        until(lambda: [mappings_in(rank.pid) for rank in ranks] == [0, 0], "nobody holds it any more")


def test_memory_of_the_caller_can_be_declared_again_also_when_a_worker_has_died() -> None:
    with Daemon(*options()) as daemon, ranks_on(daemon.socket) as ranks:
        all_do(ranks, "declare", memory="part")
        right = all_do(ranks, "step", seed=0)
        for dies in (False, True):
            if dies:
                os.kill(worker_of(daemon), signal.SIGKILL)
                assert [answer["kind"] for answer in all_do(ranks, "step", seed=0)] == ["StepFailed"] * 2
            assert all("digest" in answer for answer in all_do(ranks, "declare", memory="again"))
            assert all_do(ranks, "step", seed=0) == right
            until(lambda: mapped_by(daemon) == 2, "of the declaration before nothing is mapped any more")
        assert all_do(ranks, "beside") == [{"as_before": True}] * 2


@pytest.mark.parametrize(
    ("memory", "kind", "said"),
    [
        ("odd", "UsageError", f"begins {OFFSET + 8} bytes into its allocation"),
        ("small", "UsageError", f"memory has {NEEDED - 1} bytes, and these tensors take {NEEDED}"),
        ("gaps", "UsageError", "memory is not contiguous"),
        ("unshared", "ImportRefused", "unset expandable_segments"),
    ],
)
def test_memory_of_the_caller_that_cannot_be_an_arena_is_refused_and_the_rank_goes_on(
    daemon: Daemon, memory: str, kind: str, said: str
) -> None:
    with ranks_on(daemon.socket, f"refused-{memory}", 1) as ranks:
        answer = ranks[0].order("declare", memory=memory)
        assert answer["kind"] == kind, answer
        assert said in answer["error"]
        assert "digest" in ranks[0].order("declare", device="cuda")
        assert "norm" in ranks[0].order("step", seed=0)


@pytest.mark.parametrize("memory", [None, "whole", "part"])
def test_a_probe_reaches_memory_and_keeps_nothing_of_it(daemon: Daemon, memory: str | None) -> None:
    with ranks_on(daemon.socket, f"probe-{memory}", 1) as ranks:
        for _ in range(3):
            answer = ranks[0].order("probe", memory=memory)
            assert (answer["device"], answer["mapped_bytes"]) == (GPUS[0], 2 << 20), answer
            assert answer["open_s"] > 0
            assert answer["kept"], "what was there before"
            assert mapped_by(daemon) == 0
        assert "digest" in ranks[0].order("declare", device="cuda")
        right = ranks[0].order("step", seed=3)
        assert ranks[0].order("probe", memory=memory)["device"] == GPUS[0]
        assert mapped_by(daemon) == 1, "that of the declaration"
        assert ranks[0].order("step", seed=3) == right


@pytest.mark.parametrize(
    ("code", "hint"),
    [(1, "alloc_grad_buffer"), (46, "nvidia-smi -c DEFAULT"), (201, "PID namespace"), (205, "both containers")],
)
def test_a_probe_that_cuda_refuses_says_what_to_do(daemon: Daemon, code: int, hint: str) -> None:
    with ranks_on(daemon.socket, f"probe-{code}", 1, GRADSYNC_FAKE_CUDA_REFUSES=str(code)) as ranks:
        answer = ranks[0].order("probe")
        assert answer["kind"] == "ImportRefused", answer
        assert f"(CUDA error {code})" in answer["error"]
        assert hint in answer["error"]
        assert mapped_by(daemon) == 0


def test_a_probe_of_what_the_driver_does_not_share_is_refused_here(daemon: Daemon) -> None:
    with ranks_on(daemon.socket, "probe-unshared", 1) as ranks:
        answer = ranks[0].order("probe", memory="unshared")
        assert answer["kind"] == "ImportRefused", answer
        assert "unset expandable_segments" in answer["error"]


def test_a_probe_has_a_worker_that_died_started_again(daemon: Daemon) -> None:
    with ranks_on(daemon.socket, "probe-again", 1) as ranks:
        assert ranks[0].order("probe")["kept"]
        before = worker_of(daemon)
        os.kill(before, signal.SIGKILL)
        until(lambda: before not in workers_of(daemon.process.pid), "it is reaped")
        answer = ranks[0].order("probe")
        if "kind" in answer:  # the daemon hears of its end by this command
            assert (answer["kind"], "another worker is started" in answer["error"]) == ("ImportRefused", True), answer
            answer = ranks[0].order("probe")
        assert answer["kept"]
        assert worker_of(daemon) != before


@pytest.mark.parametrize("times", [pytest.param(3), pytest.param(TIMES, marks=pytest.mark.long)])
def test_an_owner_that_dies_is_named_and_its_memory_is_let_go(daemon: Daemon, times: int) -> None:
    for time in range(times):
        with ranks_on(daemon.socket, f"dies-{time}") as ranks:
            all_do(ranks, "declare", device="cuda")
            all_do(ranks, "step", seed=1)
            assert mapped_by(daemon) == 2
            ranks[0].tell("step", seed=2)
            ranks[1].kill()
            answer = ranks[0].answer()
            assert answer["kind"] == "RankLost", answer
            assert answer["ranks"] == [1]
            until(lambda: mapped_by(daemon) == 1, "the memory of the dead rank is unmapped")
        until(lambda: mapped_by(daemon) == 0, "everything is unmapped")


@pytest.mark.parametrize("times", [pytest.param(3), pytest.param(TIMES, marks=pytest.mark.long)])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGABRT])
def test_a_worker_that_dies_costs_a_step_and_another_takes_its_place(how: signal.Signals, times: int) -> None:
    with Daemon(*options()) as daemon, ranks_on(daemon.socket) as ranks:
        all_do(ranks, "declare", device="cuda")
        right = all_do(ranks, "step", seed=0)
        with ranks_on(daemon.socket, "beside") as others:
            all_do(others, "declare", device="cpu")
            for _ in range(times):
                before = worker_of(daemon)
                os.kill(before, how)
                for answer in all_do(ranks, "step", seed=0):
                    assert answer["kind"] == "StepFailed", answer
                    assert "register the buffers again" in answer["error"]
                assert all_do(others, "step", seed=0) == right, "a job on CPUs is not disturbed"
                all_do(ranks, "declare", device="cuda")
                assert all_do(ranks, "step", seed=0) == right
                assert worker_of(daemon) != before
        assert mapped_by(daemon) == 2


@pytest.mark.parametrize("given", [{"device": "cuda"}, {"memory": "part", "keep": False}])
def test_a_restarted_daemon_maps_the_memory_again(tmp_path: Path, given: dict[str, object]) -> None:
    with Lives(tmp_path, *options()) as lives, ranks_on(lives.address) as ranks:
        all_do(ranks, "declare", **given)
        right = all_do(ranks, "step", seed=0)
        for _ in range(3):
            lives.end(signal.SIGKILL)
            assert all_do(ranks, "step", seed=0) == right
            assert mappings_in(workers_of(lives.processes[-1].pid)[0]) == 2


def test_two_gpus_have_a_worker_each(daemon: Daemon) -> None:
    with ranks_on(daemon.socket, "first") as one, ranks_on(daemon.socket, "second", gpu=GPUS[1]) as other:
        all_do(one, "declare", device="cuda")
        all_do(other, "declare", device="cuda:0")
        assert all_do(one, "step", seed=4) == all_do(other, "step", seed=4)
        assert [mappings_in(worker) for worker in workers_of(daemon.process.pid)] == [2, 2]


@pytest.mark.training
def test_ranks_on_two_gpus_get_the_bits_of_one(daemon: Daemon) -> None:
    with ranks_on(daemon.socket, "one-gpu") as ranks:
        all_do(ranks, "declare", device="cuda")
        right = [all_do(ranks, "step", seed=seed) for seed in range(5)]
    until(lambda: mapped_by(daemon) == 0, "everything is unmapped")
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(GpuRank(daemon.socket, "two-gpus", rank, 2, GPUS[rank])) for rank in range(2)]
        assert all("digest" in answer for answer in all_do(ranks, "declare", device="cuda"))
        workers = workers_of(daemon.process.pid)
        assert [mappings_in(worker) for worker in workers] == [2, 2], "each worker reaches both ranks"
        assert [all_do(ranks, "step", seed=seed) for seed in range(5)] == right
        os.kill(workers[0], signal.SIGKILL)
        for answer in all_do(ranks, "step", seed=5):
            assert answer["kind"] == "StepFailed", answer
        all_do(ranks, "declare", device="cuda")
        assert all_do(ranks, "step", seed=0) == right[0]
        ranks[1].kill()
        until(lambda: mapped_by(daemon) == 2, "the dead rank's memory is let go")
    until(lambda: mapped_by(daemon) == 0, "everything is unmapped")


@pytest.mark.parametrize(
    ("code", "hint"),
    [(1, "alloc_grad_buffer"), (201, "PID namespace"), (205, "visible to both containers"), (400, "higher generation")],
)
def test_what_cuda_refuses_is_named_with_what_to_do(daemon: Daemon, code: int, hint: str) -> None:
    with ranks_on(daemon.socket, f"refused-{code}", 1, GRADSYNC_FAKE_CUDA_REFUSES=str(code)) as ranks:
        answer = ranks[0].order("declare", device="cuda")
        assert answer["kind"] == "ImportRefused", answer
        assert f"(CUDA error {code})" in answer["error"]
        assert hint in answer["error"]
        assert "digest" in ranks[0].order("declare", device="cpu"), "the rank goes on without"


@pytest.mark.parametrize(
    ("fails", "kind"),
    [
        ("cuInit=100", "NoGpu"),
        ("cuMemAlloc_v2=2", "InsufficientMemory"),
        ("cuIpcGetMemHandle=1", "ImportRefused"),
    ],
)
def test_what_the_trainers_driver_refuses_is_named_before_the_daemon_is_asked(
    daemon: Daemon, fails: str, kind: str
) -> None:
    with ranks_on(daemon.socket, fails, 1, GRADSYNC_FAKE_CUDA_FAILS=fails) as ranks:
        answer = ranks[0].order("declare", device="cuda")
        assert answer["kind"] == kind, answer
        assert f"(CUDA error {fails.split('=')[1]})" in answer["error"]


def test_a_gpu_that_the_daemon_does_not_see(daemon: Daemon) -> None:
    with ranks_on(daemon.socket, "elsewhere", 1, gpu="GPU-ffffffff-0000-4000-8000-000000000009") as ranks:
        answer = ranks[0].order("declare", device="cuda")
        assert answer["kind"] == "NoGpu", answer
        assert GPUS[0] in answer["error"]


@pytest.mark.parametrize(
    "given", [(), ("--gpu-kernels", "off"), ("--gpu-kernels", "/nowhere", "--gpu-devices", GPUS[0])]
)
def test_a_daemon_without_gpus_says_so_and_serves_cpus(given: tuple[str, ...]) -> None:
    with Daemon(*given) as daemon, ranks_on(daemon.socket, world=1) as ranks:
        for what in ({"do": "declare", "device": "cuda"}, {"do": "probe"}):
            answer = ranks[0].order(**what)
            assert answer["kind"] == "NoGpu", answer
        assert workers_of(daemon.process.pid) == []
        assert "digest" in ranks[0].order("declare", device="cpu")
        assert "norm" in ranks[0].order("step", seed=0)


def test_doctor_tries_a_worker_for_each_gpu() -> None:
    well = run_command("doctor", *options())
    assert well.returncode == 0, well.stdout
    for gpu in GPUS:
        assert f"ok       a worker opened {gpu} and reached memory in " in well.stdout
        assert f"ok       a worker of {gpu} mapped memory of another process in " in well.stdout
        assert f"ok       {gpu}: emulated, 1.0 GiB, compute capability 9.0" in well.stdout
    for one, other in (GPUS, reversed(GPUS)):
        assert f"ok       a worker of {one} reaches memory of {other}" in well.stdout
    broken = run_command("doctor", "--gpu-devices", GPUS[0], "--gpu-kernels", "/lib/x86_64-linux-gnu/libm.so.6")
    assert broken.returncode == 1
    assert f"problem  a worker cannot use {GPUS[0]}: " in broken.stdout
    assert "ended with exit code 70" in broken.stdout


@pytest.mark.parametrize(
    ("device", "level", "found", "hint"),
    [
        ({"COMPUTE_MODE": "3"}, "problem", f"{GPUS[0]} is in compute mode exclusive process", "-c DEFAULT"),
        ({"COMPUTE_MODE": "2"}, "problem", f"{GPUS[1]} is in compute mode prohibited", "-c DEFAULT"),
        ({"NAME": "NVIDIA H100 MIG 1g.10gb"}, "note", f"{GPUS[0]} is a MIG instance", "need this instance"),
        ({"NO_PEER": "1"}, "problem", f"a worker of {GPUS[1]} cannot map memory of {GPUS[0]}: ", "topo -p2p"),
        ({"REFUSES": "201"}, "problem", f"a worker of {GPUS[0]} cannot map memory of it: ", "share the PID namespace"),
        ({"REFUSES": "801"}, "problem", "(CUDA error 801)", "MIG instance"),
    ],
)
def test_doctor_says_of_each_thing_that_keeps_gpus_from_being_shared_what_to_do(
    device: dict[str, str], level: str, found: str, hint: str
) -> None:
    env = clean_environment(**{f"GRADSYNC_SIMT_{name}": value for name, value in device.items()})
    looked = run_command("doctor", *options("--json"), env=env)
    findings = [one for one in json.loads(looked.stdout) if found in one["what"]]
    assert findings, looked.stdout
    assert all(one["level"] == level and hint in one["hint"] for one in findings), findings
    assert looked.returncode == (1 if level == "problem" else 0)
    alone = [one for one in json.loads(looked.stdout) if "mapped memory of another process" in one["what"]]
    assert len(alone) == (0 if "REFUSES" in device else len(GPUS)), "each GPU by itself"


def trained(daemon: Daemon, folder: Path, gpu: bool, *more: str) -> list[list[dict[str, object]]]:
    """What the ranks of `make demo`'s training recorded, without times."""
    script = [
        str(EXAMPLES / "train_char.py"),
        "--backend",
        "gradsync",
        "--json",
        str(folder / "run"),
        "--checks",
        str(folder),
    ]
    model = ["--batch", "1", "--context", "32", "--width", "64", "--layers", "2", "--steps", "8", "--check-every", "3"]
    emulated = {"GRADSYNC_LIBCUDA": str(DRIVER), "CUDA_VISIBLE_DEVICES": GPUS[0]} if gpu else {}
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"),
            *(str(Path(__file__).with_name("gpu_training.py")), *script, *model, *more),
        ],
        env=clean_environment(GRADSYNC_ADDRESS=daemon.socket, OMP_NUM_THREADS="1", **emulated),
        check=True,
        timeout=2 * DEADLINE_S,
    )
    ranks = [(folder / f"run.{rank}").read_text().splitlines() for rank in range(2)]
    return [[without_times(json.loads(line)) for line in lines] for lines in ranks]


def without_times(record: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in record.items() if not key.endswith(("_s", "_ms", "seconds"))}


@pytest.mark.training
@pytest.mark.parametrize("more", [pytest.param((), marks=pytest.mark.rare), ("--accumulate", "2")])
def test_a_module_trains_to_the_bits_of_cpus(daemon: Daemon, tmp_path: Path, more: tuple[str, ...]) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "gpu").mkdir()
    on_cpu, on_gpu = trained(daemon, tmp_path / "cpu", False, *more), trained(daemon, tmp_path / "gpu", True, *more)
    assert len(on_gpu[0]) > 8
    assert len({record["weights"] for record in on_gpu[0] if record["kind"] == "check"}) >= 3
    assert on_gpu == on_cpu
    until(lambda: mapped_by(daemon) == 0, "everything is unmapped")
