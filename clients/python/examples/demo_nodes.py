"""`make demo-nodes`: four ranks train a character model, two on each of two daemons, and again all on one daemon.

Both daemons of the first run are on this machine, at addresses of their own; what one has of a gradient reaches the
other by TCP. Writes report.json.

How they are compared: within a run every rank must have equal bits of each norm and of the final weights. Between the
runs sums are added in another order, so numbers may differ by roundings, which training carries on: loss and norm are
compared over all steps, and differ by 1e-5 of their size at most.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from demo import TOLERANCE, machine, mean_over_ranks, say, worst
from train_char import parse, read_records, step_times_ms

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
NODES, PER_NODE = 2, 2
RANKS = NODES * PER_NODE
WAIT_S = 1200.0
Launch = tuple[Sequence[str], Mapping[str, str]]  # a command, and what its environment has besides


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return int(probe.getsockname()[1])


def script(records: Path, options: argparse.Namespace) -> list[str]:
    numbers = [f"--steps={options.steps}", f"--max-norm={options.max_norm}"]
    return [str(HERE / "train_char.py"), "--backend=gradsync", f"--json={records}", *numbers]


def over_two_daemons(records: Path, options: argparse.Namespace) -> list[Launch]:
    """As on two machines: a command for each, whose daemon knows the token and listens for the other one."""
    token = records.with_suffix(".token")
    token.touch(0o600)
    token.write_text(secrets.token_hex(16))
    peer_port, master_port = free_port(), free_port()
    launches: list[Launch] = []
    for node in range(NODES):
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={NODES}", f"--node-rank={node}"]
        torchrun += [f"--nproc-per-node={PER_NODE}", "--master-addr=127.0.0.2", f"--master-port={master_port}"]
        environment = {
            "GRADSYNC_PEER_LISTEN": f"127.0.0.{node + 2}:{peer_port}",
            "GRADSYNC_PEER_TOKEN_FILE": str(token),
            "GRADSYNC_PEER_NODE": f"node{node}",
        }
        launches.append(([options.gradsyncd, "run", "--", *torchrun, *script(records, options)], environment))
    return launches


def on_one_daemon(records: Path, options: argparse.Namespace) -> list[Launch]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    return [([options.gradsyncd, "run", "--", *torchrun, *script(records, options)], {})]


def train(title: str, launches: Sequence[Launch], records: Path) -> list[list[dict[str, object]]]:
    """Runs the commands beside each other; what each rank recorded."""
    say(f"{title}: {parse([]).accumulate} micro-batches a step on each of {RANKS} ranks")
    logs = [records.with_suffix(f".{index}.log") for index in range(len(launches))]
    processes = []
    for (command, more), path in zip(launches, logs, strict=True):
        with path.open("wb") as log:
            environment = {"OMP_NUM_THREADS": "1"} | dict(os.environ) | dict(more)
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    deadline = time.monotonic() + WAIT_S
    try:
        for process, path in zip(processes, logs, strict=True):
            if process.wait(deadline - time.monotonic()) != 0:
                tail = "".join(path.read_text(errors="replace").splitlines(keepends=True)[-30:])
                raise SystemExit(f"demo: the training {title} ended with status {process.returncode}; {path}:\n{tail}")
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait(30)
    return read_records(records, RANKS)


def bits(rank: list[dict[str, object]]) -> list[object]:
    """What has to be equal on all ranks of a run: every norm, and the final weights."""
    return [record["norm"] if record["kind"] == "step" else record["weights"] for record in rank]


def compare(
    apart: list[list[dict[str, object]]], together: list[list[dict[str, object]]], commands: list[str]
) -> dict[str, object]:
    runs = {"2 x 2": apart, "1 x 4": together}
    return {
        "world_size": RANKS,
        "nodes": NODES,
        "steps": sum(record["kind"] == "step" for record in apart[0]),
        "ranks_bit_equal": {name: all(bits(rank) == bits(run[0]) for rank in run) for name, run in runs.items()},
        "max_rel_loss_diff": worst(mean_over_ranks(apart, "step", "loss"), mean_over_ranks(together, "step", "loss")),
        "max_rel_norm_diff": worst(mean_over_ranks(apart, "step", "norm"), mean_over_ranks(together, "step", "norm")),
        "tolerance": TOLERANCE,
        "final_loss": {name: mean_over_ranks(run, "step", "loss")[-1] for name, run in runs.items()},
        "step_ms": {name: round(statistics.median(step_times_ms(run)), 3) for name, run in runs.items()},
        "steps_lost": {name: max(int(str(rank[-1]["steps_lost"])) for rank in run) for name, run in runs.items()},
        "parameters": apart[0][-1]["parameters"],
        "compared": " ".join(str(__doc__).split("How they are compared: ")[1].split()),
        "commands": commands,
        "machine": machine(),
    }


def show(report: dict[str, object], path: Path) -> bool:
    equal = report["ranks_bit_equal"]
    assert isinstance(equal, dict)
    checks = [(f"{name}: bits equal on all ranks", value, value) for name, value in equal.items()]
    for what, key in (("loss", "max_rel_loss_diff"), ("norm", "max_rel_norm_diff")):
        value = float(str(report[key]))
        checks.append((f"largest relative difference of a {what}", f"{value:.2e}", value <= TOLERANCE))
    for text, value, good in checks:
        say(f"  {text:40} {value!s:>10}   {'ok' if good else f'NOT as promised ({TOLERANCE:g})'}")
    say(f"  {path}")
    return all(bool(good) for _, _, good in checks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--max-norm", type=float, default=parse([]).max_norm)
    parser.add_argument(
        "--gradsyncd", default=os.environ.get("GRADSYNCD") or str(ROOT / "build/cpu-release/bin/gradsyncd")
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build/demo-nodes")
    options = parser.parse_args()
    if not os.access(options.gradsyncd, os.X_OK):
        parser.error(f"{options.gradsyncd} is no executable; build it with `make build`, or pass --gradsyncd")
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    apart, together = options.out / "two-daemons", options.out / "one-daemon"
    launches = over_two_daemons(apart, options)
    of_two = train("two ranks on each of two daemons", launches, apart)
    of_one = train("four ranks on one daemon", on_one_daemon(together, options), together)
    report = compare(of_two, of_one, [shlex.join(command) for command, _ in launches])
    (options.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    if not show(report, options.out / "report.json"):
        sys.exit(1)


if __name__ == "__main__":
    main()
