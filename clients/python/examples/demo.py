"""`make demo`: two ranks train a character model through gradsyncd, and again with torch DDP, and are compared.

Both trainings run at once but never at the same time: they take turns of a few steps, so that a machine that becomes
slower or faster meets both alike. Writes report.json and curves.png.

How gradients are compared: two trainings that differ by one rounding drift apart, so comparing them after many steps
would measure chaos. Every 20th step the gradsync run saves its weights and the gradients it reduced and clipped there;
the torch run visits these weights with the same data, reduces and clips by DDP and clip_grad_norm_, and compares
tensor by tensor (largest ‖a - b‖ / ‖b‖). Loss and norm are compared over all steps of the two independent trainings.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from train_char import parse, read_records, step_times_ms

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TOLERANCE = 1e-5
BLOCK = 10
WAIT_S = 600.0


class Training:
    """A torchrun whose ranks wait for their turns."""

    def __init__(self, name: str, title: str, prefix: list[str], options: list[str], ranks: int, folder: Path) -> None:
        self.name, self.title, self.ranks = name, title, ranks
        self.records = folder / name
        self._pipes = pipes = folder / f"{name}.turns"
        pipes.mkdir()
        for pipe in ("done", *(f"grant-{rank}" for rank in range(ranks))):
            os.mkfifo(pipes / pipe)
        # Both ends are held open here: opening never waits, and the ranks see the end of file when this process ends.
        self._done = os.open(pipes / "done", os.O_RDWR | os.O_NONBLOCK)
        self._grants = [os.open(pipes / f"grant-{rank}", os.O_RDWR) for rank in range(ranks)]
        self._log_path = folder / f"{name}.log"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        script = [str(HERE / "train_char.py"), f"--backend={name}", f"--json={self.records}", f"--turns={pipes}"]
        self.command = [*prefix, *torchrun, *script, f"--block={BLOCK}", *options]
        with open(self._log_path, "wb") as log:
            environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | os.environ
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment)

    def give_turn(self) -> None:
        for grant in self._grants:
            os.write(grant, b".")

    def wait_for_turn_end(self) -> None:
        arrived, deadline = 0, time.monotonic() + WAIT_S
        while arrived < self.ranks:
            if select.select([self._done], [], [], 0.5)[0]:
                arrived += len(os.read(self._done, self.ranks - arrived))
            elif self._process.poll() is not None:
                self._give_up(f"ended with status {self._process.returncode}")
            elif time.monotonic() > deadline:
                self._give_up(f"did not finish {BLOCK} steps in {WAIT_S:.0f} s")

    def finish(self) -> None:
        self.give_turn()
        if self._process.wait(WAIT_S) != 0:
            self._give_up(f"ended with status {self._process.returncode}")

    def stop(self) -> None:
        for pipe in (self._done, *self._grants):
            os.close(pipe)
        shutil.rmtree(self._pipes, ignore_errors=True)
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(30)

    def last(self) -> dict[str, float]:
        """Mean over ranks of the newest step."""
        rows = [[r for r in rank if r["kind"] == "step"][-1] for rank in read_records(self.records, self.ranks)]
        return {key: statistics.fmean(row[key] for row in rows) for key in ("loss", "norm", "step_ms")}

    def _give_up(self, what: str) -> None:
        tail = "".join(self._log_path.read_text(errors="replace").splitlines(keepends=True)[-30:])
        raise SystemExit(f"demo: the {self.title} training {what}; the end of {self._log_path}:\n{tail}")


def run(options: argparse.Namespace, gradsyncd: str, folder: Path) -> tuple[Training, Training]:
    """Both trainings, turn by turn."""
    checks = folder / "checks"
    checks.mkdir()
    same = [f"--steps={options.steps}", f"--checks={checks}", f"--max-norm={options.max_norm}"]
    trainings: list[Training] = []
    try:
        ours = Training("gradsync", "gradsync", [gradsyncd, "run", "--"], same, options.ranks, folder)
        trainings.append(ours)
        torch_ddp = Training("ddp", "torch DDP", [], same, options.ranks, folder)
        trainings.append(torch_ddp)
        say(f"two trainings of {options.steps} steps on {options.ranks} ranks each, taking turns; starting")
        for training in trainings:
            training.wait_for_turn_end()
        said = 0.0
        for block in range(options.steps // BLOCK):
            # Checked steps come first in even blocks, where torch needs what gradsync saved just before.
            for training in trainings if block % 2 == 0 else trainings[::-1]:
                training.give_turn()
                training.wait_for_turn_end()
            if time.monotonic() - said >= 2 or block == options.steps // BLOCK - 1:
                said = time.monotonic()
                a, b = ours.last(), torch_ddp.last()
                say(
                    f"step {(block + 1) * BLOCK:4}/{options.steps}   loss {a['loss']:.4f} | {b['loss']:.4f}   "
                    f"norm {a['norm']:.4f} | {b['norm']:.4f}   ms {a['step_ms']:.0f} | {b['step_ms']:.0f}   "
                    "(gradsync | torch DDP)"
                )
        for training in trainings:
            training.finish()
        return ours, torch_ddp
    finally:
        for training in trainings:
            training.stop()
        shutil.rmtree(checks, ignore_errors=True)


def compare(ours: Training, torch_ddp: Training, options: argparse.Namespace) -> tuple[dict[str, object], dict]:
    a, b = read_records(ours.records, options.ranks), read_records(torch_ddp.records, options.ranks)
    curves = {
        key: {side.name: mean_over_ranks(rows, "step", key) for side, rows in ((ours, a), (torch_ddp, b))}
        for key in ("loss", "norm")
    }
    checked = {
        key: worst(mean_over_ranks(a, "check", key), mean_over_ranks(b, "check", key)) for key in ("loss", "norm")
    }
    ours_ms, torch_ms = step_times_ms(a), step_times_ms(b)
    report = {
        "world_size": options.ranks,
        "steps": options.steps,
        "clipped_steps": sum(norm > options.max_norm for norm in curves["norm"]["gradsync"]),
        "ranks_bit_equal": all(bits(rank) == bits(a[0]) for rank in a),
        "max_rel_grad_diff": max(r["relative_difference"] for rank in b for r in rank if r["kind"] == "check"),
        "max_rel_norm_diff": worst(*curves["norm"].values()),
        "max_rel_loss_diff": worst(*curves["loss"].values()),
        "ours_step_ms": round(statistics.median(ours_ms), 3),
        "torch_step_ms": round(statistics.median(torch_ms), 3),
        "step_ratio": round(statistics.median(torch_ms) / statistics.median(ours_ms), 4),
        "checked_steps": [r["step"] for r in a[0] if r["kind"] == "check"],
        "checked_max_rel_norm_diff": checked["norm"],
        "checked_max_rel_loss_diff": checked["loss"],
        "norm_error_against_float64": {
            side.name: max(r["norm_error"] for rank in rows for r in rank if r["kind"] == "check")
            for side, rows in ((ours, a), (torch_ddp, b))
        },
        "final_weights_equal_torch": bits(a[0])[-1] == bits(b[0])[-1],
        "parameters": a[0][-1]["parameters"],
        "accumulate": parse([]).accumulate,
        "max_norm": options.max_norm,
        "compared": " ".join(__doc__.split("How gradients are compared: ")[1].split()),
        "timed": f"median over the steps after the first 5 of the slowest rank's time; turns of {BLOCK} steps",
        "command": shlex.join(["python", str(Path(__file__).relative_to(ROOT)), *sys.argv[1:]]),
        "commands": {side.name: shlex.join(side.command) for side in (ours, torch_ddp)},
        "machine": machine(),
    }
    return report, curves


def mean_over_ranks(ranks: list[list[dict]], kind: str, key: str) -> list[float]:
    rows = [[float(r[key]) for r in rank if r["kind"] == kind] for rank in ranks]
    return [statistics.fmean(values) for values in zip(*rows, strict=True)]


def worst(ours: list[float], theirs: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


def bits(rank: list[dict]) -> list[object]:
    """What has to be equal on all ranks: every norm, weights and gradients of checked steps, the final weights last."""
    keys = {"step": ("norm",), "check": ("weights", "gradients"), "end": ("weights",)}
    return [tuple(record[key] for key in keys[record["kind"]]) for record in rank]


def machine() -> dict[str, object]:
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def draw_curves(curves: dict, report: dict[str, object], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 1, figsize=(9, 7), sharex=True, layout="constrained")
    for panel, (key, sides) in zip(panels, curves.items(), strict=True):
        panel.plot(sides["ddp"], label="torch DDP", color="tab:orange", linewidth=3, alpha=0.6)
        panel.plot(sides["gradsync"], label="gradsync", color="tab:blue", linewidth=1)
        panel.set_ylabel("loss" if key == "loss" else "gradient norm before clipping")
        panel.legend(loc="upper right")
    panels[1].axhline(float(report["max_norm"]), color="gray", linestyle="--", linewidth=1)  # type: ignore[arg-type]
    panels[1].set_xlabel("step")
    figure.suptitle(
        f"{report['world_size']} ranks, {report['steps']} steps: {report['ours_step_ms']} ms a step, "
        f"torch DDP {report['torch_step_ms']} ms"
    )
    figure.savefig(path, dpi=110)


def show(report: dict[str, object], folder: Path) -> bool:
    checks = [
        ("bits equal on all ranks", report["ranks_bit_equal"], report["ranks_bit_equal"]),
        *(
            (f"largest relative difference of {what}", f"{report[key]:.2e}", report[key] <= TOLERANCE)  # type: ignore[operator]
            for what, key in (
                ("a gradient", "max_rel_grad_diff"),
                ("a norm", "max_rel_norm_diff"),
                ("a loss", "max_rel_loss_diff"),
            )
        ),
    ]
    say("")
    for text, value, good in checks:
        say(f"  {text:40} {value!s:>10}   {'ok' if good else f'NOT as promised ({TOLERANCE:g})'}")
    say(f"  {'steps clipped':40} {report['clipped_steps']:>6}/{report['steps']}")
    say(f"  {'median step, gradsync':40} {report['ours_step_ms']:>7} ms")
    say(f"  {'median step, torch DDP + clip_grad_norm_':40} {report['torch_step_ms']:>7} ms   ×{report['step_ratio']}")
    say("")
    say(f"  {folder / 'report.json'}, {folder / 'curves.png'}")
    return all(bool(good) for _, _, good in checks)


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help=f"a multiple of {BLOCK}")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--max-norm", type=float, default=parse([]).max_norm)
    parser.add_argument(
        "--gradsyncd", default=os.environ.get("GRADSYNCD") or str(ROOT / "build/cpu-release/bin/gradsyncd")
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build/demo")
    options = parser.parse_args()
    if options.steps < BLOCK or options.steps % BLOCK:
        parser.error(f"--steps {options.steps} is not a multiple of {BLOCK}")
    if not os.access(options.gradsyncd, os.X_OK):
        parser.error(f"{options.gradsyncd} is no executable; build it with `make build`, or pass --gradsyncd")
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    ours, torch_ddp = run(options, options.gradsyncd, options.out)
    report, curves = compare(ours, torch_ddp, options)
    (options.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    draw_curves(curves, report, options.out / "curves.png")
    if not show(report, options.out):
        sys.exit(1)


if __name__ == "__main__":
    main()
