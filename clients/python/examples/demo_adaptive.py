"""`make demo-adaptive`: a training clipped at the 95th percentile of its last norms, stopped in the middle and resumed.

Two ranks train a small character model through gradsyncd, once to the end. Then they do it again, but save a checkpoint
after half of the steps, and they and their daemon end; new ones go on from it. Three things have to be the same to
the bit: every threshold and what numpy.percentile makes of the norms before it; the resumed run and the undisturbed
one, up to the final weights; and both ranks. Writes adaptive.json and adaptive.png; exits with 1 and says where, if
something differs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from demo import HERE, ROOT, WAIT_S, machine, say
from train_adaptive import parse
from train_char import read_records

import gradsync

SETTINGS = ("percentile", "window", "warmup", "ceiling", "seed")
RESULTS = (
    "steps",
    "clipped_fraction",
    "steps_below_ceiling",
    "max_threshold_diff",
    "resumed_bit_equal",
    "ranks_bit_equal",
)
COMPARED = ("norm", "threshold", "clipped", "remembered")
Records = list[list[dict]]  # of each rank, in the order of steps


def train(title: str, arguments: list[str], options: argparse.Namespace, folder: Path) -> Records:
    """One life of all ranks and their daemon."""
    say(f"{title}:")
    name = title.replace(" ", "-")
    records, log_path = folder / name, folder / f"{name}.log"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
    settings = [f"--{key}={getattr(options, key)}" for key in SETTINGS]
    command = [options.gradsyncd, "run", "--", *torchrun, str(HERE / "train_adaptive.py"), f"--json={records}"]
    with open(log_path, "wb") as log:
        environment = {"OMP_NUM_THREADS": "1"} | os.environ
        process = subprocess.Popen([*command, *settings, *arguments], stderr=log, env=environment)
        try:
            status: object = process.wait(WAIT_S + options.steps)
        except subprocess.TimeoutExpired as error:
            status = f"none in {error.timeout:.0f} s"
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)
    if status != 0:
        tail = "".join(log_path.read_text(errors="replace").splitlines(keepends=True)[-30:])
        raise SystemExit(f"demo-adaptive: {title} ended with status {status}; the end of {log_path}:\n{tail}")
    return read_records(records, options.ranks)


def steps(rank: list[dict]) -> list[dict]:
    return [record for record in rank if record["kind"] == "step"]


def numpy_thresholds(norms: list[float], options: argparse.Namespace) -> list[float]:
    """The rule in plain words: a percentile of the last norms before this one, never above the ceiling."""
    found, history = [], []
    for norm in norms:
        percentile = float(np.percentile(history, options.percentile)) if len(history) >= options.warmup else 0.0
        found.append(min(options.ceiling, percentile) if percentile > 0 else options.ceiling)
        if math.isfinite(norm):
            history = [*history, norm][-options.window :]
    return found


def by_numpy(rank: list[dict], options: argparse.Namespace) -> tuple[float, str | None]:
    """The largest difference of a threshold from numpy's, and the first one in words."""
    rows = steps(rank)
    ours, theirs = [row["threshold"] for row in rows], numpy_thresholds([row["norm"] for row in rows], options)
    fault = next(
        (
            f"the threshold of step {step} is {a!r}, and {b!r} by numpy.percentile"
            for step, (a, b) in enumerate(zip(ours, theirs, strict=True))
            if a != b
        ),
        None,
    )
    return float(np.max(np.abs(np.subtract(ours, theirs)))), fault


def difference(ours: list[dict], theirs: list[dict]) -> str | None:
    """Where two sequences of steps and what their weights are at the end differ first."""
    for a, b in zip(steps(ours), steps(theirs), strict=True):
        for key in ("step", *COMPARED):
            if a[key] != b[key]:
                return f"step {b['step']} has {key} {a[key]!r} instead of {b[key]!r}"
    return None if ours[-1]["weights"] == theirs[-1]["weights"] else "the final weights are others"


def compare(
    whole: Records, before: Records, after: Records, options: argparse.Namespace
) -> tuple[dict[str, object], list[str]]:
    """The report, and a sentence for each run that is not as promised."""
    resumed = [[*steps(first), *second] for first, second in zip(before, after, strict=True)]
    found = [by_numpy(rank, options) for rank in (*whole, *resumed)]
    after_stop = [difference(a, b) for a, b in zip(resumed, whole, strict=True)]
    between_ranks = [difference(rank, runs[0]) for runs in (whole, resumed) for rank in runs[1:]]
    faults = [fault for _, fault in found if fault]
    faults += [f"rank {r} of the resumed run is not as undisturbed: {d}" for r, d in enumerate(after_stop) if d]
    faults += [f"the ranks are not equal: {d}" for d in between_ranks if d]
    rows = steps(whole[0])
    report: dict[str, object] = {
        "steps": options.steps,
        "clipped_fraction": sum(row["clipped"] for row in rows) / len(rows),
        "max_threshold_diff": float(np.max([largest for largest, _ in found])),
        "resumed_bit_equal": not any(after_stop),
        "ranks_bit_equal": not any(between_ranks),
        "stopped_after": len(steps(before[0])),
        "steps_below_ceiling": sum(row["threshold"] < options.ceiling for row in rows),
        "world_size": options.ranks,
        **{key: getattr(options, key) for key in SETTINGS},
        "parameters": whole[0][-1]["parameters"],
        "command": shlex.join(["python", str(Path(__file__).relative_to(ROOT)), *sys.argv[1:]]),
        "machine": machine(),
    }
    return report, faults


def draw(whole: Records, before: Records, after: Records, report: dict[str, object], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    def column(rows: list[dict], key: str) -> tuple[list[int], list[float]]:
        return [row["step"] for row in rows], [row[key] for row in rows]

    rows = [*steps(before[0]), *steps(after[0])]
    figure, panel = pyplot.subplots(figsize=(10, 5.5), layout="constrained")
    panel.plot(*column(rows, "norm"), color="tab:blue", linewidth=0.6, alpha=0.7, label="norm before clipping")
    clipped = [row for row in rows if row["clipped"]]
    panel.plot(*column(clipped, "norm"), ".", color="tab:red", markersize=5, label="clipped")
    panel.plot(
        *column(steps(whole[0]), "threshold"),
        color="tab:orange",
        linewidth=5,
        alpha=0.4,
        label="threshold, undisturbed",
    )
    panel.plot(*column(rows, "threshold"), color="black", linewidth=1.2, label="threshold, stopped and resumed")
    panel.axvline(report["stopped_after"], color="gray", linestyle="--", linewidth=1, label="the stop")
    panel.set(xlabel="step", ylabel="gradient norm", ylim=(0, None))
    panel.legend(loc="upper right")
    figure.suptitle(
        f"{len(clipped)} of {report['steps']} steps clipped at percentile {report['percentile']:g} of the last "
        f"{report['window']} norms, at most {report['ceiling']:g}"
    )
    figure.savefig(path, dpi=110)


def run(options: argparse.Namespace) -> tuple[dict[str, object], list[str]]:
    folder = options.out / "adaptive"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    half, checkpoint = options.steps // 2, f"{folder / 'checkpoint'}"
    whole = train("undisturbed", [f"--until={options.steps}"], options, folder)
    before = train("to the stop", [f"--until={half}", f"--save={checkpoint}"], options, folder)
    after = train("resumed", [f"--until={options.steps}", f"--resume={checkpoint}"], options, folder)
    report, faults = compare(whole, before, after, options)
    (options.out / "adaptive.json").write_text(json.dumps(report, indent=2) + "\n")
    draw(whole, before, after, report, options.out / "adaptive.png")
    return report, faults


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = parse([])
    parser.add_argument("--steps", type=int, default=2000, help="half of them before the stop")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--percentile", type=float, default=usual.percentile, help="of the last norms")
    parser.add_argument("--window", type=int, default=usual.window, help="norms that are remembered")
    parser.add_argument("--warmup", type=int, default=usual.warmup, help="norms before which the ceiling decides")
    parser.add_argument("--ceiling", type=float, default=usual.ceiling, help="the threshold is never above it")
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument(
        "--gradsyncd", default=os.environ.get("GRADSYNCD") or str(ROOT / "build/cpu-release/bin/gradsyncd")
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build/demo")
    options = parser.parse_args(arguments)
    if options.steps < 2:
        parser.error(f"--steps {options.steps}: at least 2, one on each side of the stop")
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: at least 1")
    if not os.access(options.gradsyncd, os.X_OK):
        parser.error(f"{options.gradsyncd} is no executable; build it with `make build`, or pass --gradsyncd")
    try:
        gradsync.Clip.percentile(options.ceiling, options.percentile, options.window, options.warmup)
    except gradsync.GradsyncError as error:
        parser.error(str(error))
    return options


def main() -> None:
    options = parse_options()
    start = time.monotonic()
    report, faults = run(options)
    say("")
    for key in RESULTS:
        say(f"  {key:22} {report[key]}")
    say("")
    say(f"  {options.out / 'adaptive.json'}, {options.out / 'adaptive.png'}; {time.monotonic() - start:.0f} s")
    if faults:
        sys.exit("\n".join(f"demo-adaptive: {fault}" for fault in faults))


if __name__ == "__main__":
    main()
