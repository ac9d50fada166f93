"""One rank that is told nothing: it attaches to a job, takes a step, and prints what it found as one line of JSON.

`launched.py HOW` is what a launcher starts; `launched.py spawn METHOD` starts two ranks by torch.multiprocessing.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import gradsync
import gradsync.torch as gst


def say(**found: object) -> None:
    sys.stdout.write(json.dumps(found) + "\n")  # one write: ranks share the pipe
    sys.stdout.flush()


def step() -> None:
    """attach: the sidecar reduces. The gradient of rank r is r + 1."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1, bias=False)
    gs = gst.attach(model)
    job = gs._job
    (model(torch.ones(1, 4)).sum() * (job.rank + 1)).backward()
    report = gs.finish()
    say(job=job.name, rank=job.rank, world_size=job.world_size, norm=report.norm, restart=restart())
    gs.close()


def measure() -> None:
    """init: gradients are reduced already, and equal."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1, bias=False)
    session = gst.init(model)
    job = session._job
    model(torch.ones(1, 4)).sum().backward()
    norm = gst.clip_grad_norm_(model.parameters(), 1.0)
    say(job=job.name, rank=job.rank, world_size=job.world_size, norm=float(norm), restart=restart())
    gst.close()


def raw() -> None:
    """The raw client, without torch's process group."""
    with gradsync.connect() as client:
        job = client.attach()
        say(job=job.name, rank=job.rank, world_size=job.world_size, norm=None, restart=restart())
        job.declare([])


def restart() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def with_a_group(body: object, **how: object) -> None:
    dist.init_process_group("gloo", **how)  # type: ignore[arg-type]
    body()  # type: ignore[operator]
    dist.barrier()  # a rank that ends early breaks the others' connections
    dist.destroy_process_group()


def fails_once() -> None:
    """The first of its lives ends as soon as all ranks have declared."""
    raw()
    if restart() == 0:
        sys.exit(3)


def contradicts() -> None:
    os.environ["WORLD_SIZE"] = "4"
    try:
        step()
    except gradsync.UsageError as error:
        say(refused=str(error))


def rank_0_stays_away() -> None:
    if dist.get_rank() == 1:
        try:
            gst.attach(torch.nn.Linear(1, 1), timeout=0.5)
        except gradsync.errors.DeclareTimeout as error:
            say(refused=str(error))


def without_a_store() -> None:
    """As with MPI, whose process group has none."""
    dist.distributed_c10d._get_default_store = lambda: None  # type: ignore[assignment]
    step()


BODIES = {
    name.__name__: name for name in (step, measure, raw, fails_once, contradicts, rank_0_stays_away, without_a_store)
}


def spawned(rank: int, method: str, body: str) -> None:
    with_a_group(BODIES[body], init_method=method, rank=rank, world_size=2)


def spawned_without_a_group(rank: int) -> None:
    try:
        step()
    except gradsync.UsageError as error:
        say(refused=str(error))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "spawn":
        mp.spawn(spawned, sys.argv[2:4], nprocs=2)
    elif sys.argv[1] == "spawn_without_a_group":
        mp.spawn(spawned_without_a_group, nprocs=2)
    elif sys.argv[1] == "group":
        with_a_group(BODIES[sys.argv[2]])
    else:
        BODIES[sys.argv[1]]()
