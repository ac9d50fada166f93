"""Trainers that end and come again, by themselves or under torchrun's elastic agents."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # also run as a script, by elastic agents

from daemon import DEADLINE_S, TIMES, Daemon, clean_environment, free_port

import gradsync
from gradsync import Partial, Replicate, Tensor
from gradsync.errors import RankLost

ELASTIC_STEPS = 40
MEAN = {"dp": Partial("mean") >> Replicate()}
PROCESSES = multiprocessing.get_context("forkserver")


def trainer(address: str, rank: int, channel: Connection) -> None:
    """Attaches when told to, says how long it took from then on, and takes a step whenever told to."""
    channel.recv()
    began = time.monotonic()
    client = gradsync.connect(address)
    job = client.attach(job="again", rank=rank, world_size=2)
    channel.send(time.monotonic() - began)
    grads = job.declare([Tensor("t", (1000,), placements=MEAN)], timeout=DEADLINE_S)
    while channel.recv():
        lost = []
        while True:
            grads.input("t").numpy()[:] = 1 + rank
            try:
                grads.finish(ready="all", timeout=DEADLINE_S)
                break
            except RankLost as error:
                lost.append(error.message)
        channel.send((float(grads.output("t").numpy()[0]), lost))


class Trainer:
    def __init__(self, address: str, rank: int) -> None:
        self.channel, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=trainer, args=(address, rank, theirs))
        self.process.start()
        theirs.close()

    def ask(self, question: object) -> None:
        self.channel.send(question)

    def answer(self) -> object:
        assert self.channel.poll(DEADLINE_S)
        return self.channel.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(DEADLINE_S)


@pytest.mark.long
def test_a_killed_trainer_is_attached_again_at_once() -> None:
    PROCESSES.set_forkserver_preload(["gradsync", "numpy"])
    took: list[float] = []
    with Daemon() as daemon, contextlib.ExitStack() as undo:
        survivor, second = (Trainer(daemon.socket, rank) for rank in range(2))
        undo.callback(survivor.kill)
        for each in (survivor, second):
            each.ask("attach")
            assert isinstance(each.answer(), float)
        for turn in range(TIMES):
            standby = Trainer(daemon.socket, 1)  # started before, as its start is Python's time
            survivor.ask("step")
            if turn % 2:
                second.kill()  # while the other one waits for it
            else:
                second.ask("step")
                assert second.answer() == (1.5, [])
                mean, lost = survivor.answer()  # type: ignore[misc]
                assert mean == 1.5
                assert not lost
                second.kill()
                survivor.ask("step")
            standby.ask("attach")
            took.append(float(standby.answer()))  # type: ignore[arg-type]
            standby.ask("step")
            assert standby.answer() == (1.5, [])
            mean, lost = survivor.answer()  # type: ignore[misc]
            assert mean == 1.5
            assert lost
            assert all("rank 1" in message for message in lost)
            second = standby
        second.kill()
    print(f"attached again after {max(took):.4f} s at most of {TIMES}")


def elastic_rank() -> None:
    """A rank under torchrun: takes steps, and writes down of how many ranks each was the mean."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    log = Path(os.environ["ELASTIC_LOG"])
    del os.environ["LOCAL_WORLD_SIZE"]  # each agent counts its own ranks, and both agents are on this node
    with gradsync.connect() as client:
        job = client.attach()
        grads = job.declare([Tensor("t", (64,), placements=MEAN)])
        for step in range(ELASTIC_STEPS):
            grads.input("t").numpy()[:] = rank
            grads.finish(step=step, ready="all")
            mean = float(grads.output("t").numpy()[0])
            with open(log / f"rank-{rank}", "a") as file:
                file.write(
                    json.dumps({"world": world, "step": step, "mean": mean, "parent": os.getppid(), "pid": os.getpid()})
                    + "\n"
                )
            time.sleep(0 if world == 1 else 0.2)


def agent(address: str, port: int, log: Path, *, host: bool) -> subprocess.Popen[bytes]:
    conf = {"is_host": str(host).lower(), "join_timeout": 60, "last_call_timeout": 8}
    conf |= {"keep_alive_interval": 1, "keep_alive_max_attempt": 6}  # an agent that is slow is not dead
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=elastic"),
            *("--rdzv-conf", ",".join(f"{key}={value}" for key, value in conf.items()), "--monitor-interval=0.2"),
            __file__,
        ],
        env=clean_environment(GRADSYNC_ADDRESS=address, ELASTIC_LOG=str(log), OMP_NUM_THREADS="1"),
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.long
@pytest.mark.timeout(6 * DEADLINE_S)
def test_an_elastic_restart_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    def steps(rank: int) -> list[dict[str, float]]:
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in (tmp_path / f"rank-{rank}").read_text().splitlines()]
        return []

    port = free_port()
    with Daemon() as daemon:
        agents = [agent(daemon.socket, port, tmp_path, host=host) for host in (True, False)]
        try:
            end = time.monotonic() + 2 * DEADLINE_S
            while min(len([s for s in steps(rank) if s["world"] == 2]) for rank in range(2)) < 3:
                assert time.monotonic() < end, steps(0)
                time.sleep(0.05)
            agents[1].kill()  # as a node dies: the agent and its rank, wherever it has been placed
            (pid,) = {int(s["pid"]) for rank in range(2) for s in steps(rank) if s["parent"] == agents[1].pid}
            os.kill(pid, signal.SIGKILL)
            assert agents[0].wait(2 * DEADLINE_S) == 0
        finally:
            for each in agents:
                each.terminate()  # which ends its rank too
                each.wait(DEADLINE_S)
    alone = [s for s in steps(0) if s["world"] == 1]
    assert [s["step"] for s in alone] == list(range(ELASTIC_STEPS))
    assert {s["mean"] for s in alone} == {0.0}
    assert {s["mean"] for rank in range(2) for s in steps(rank) if s["world"] == 2} == {0.5}


if __name__ == "__main__":
    elastic_rank()
