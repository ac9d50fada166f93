"""Result files of the benchmarks: medians, ratios, and the machine, commit and command behind them."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "bench"


class Skipped(Exception):
    """A benchmark that would say nothing here, and why."""


@dataclass(frozen=True)
class Bar:
    """What is wanted of a figure; the table says whether it was met, and never leaves it out."""

    what: str
    value: float
    limit: float
    at_least: bool = False
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def wanted(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}{self.unit and ' ' + self.unit}"

    def cells(self) -> tuple[str, str, str, str, str]:
        found = f"{self.value:.4g}{self.unit and ' ' + self.unit}"
        return ("", self.what, found, "", f"{self.wanted()}: {'met' if self.met else 'MISSED'}")


def machine() -> dict[str, Any]:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory_kib = int(Path("/proc/meminfo").read_text().split(maxsplit=2)[1])
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False)
    return {
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kib / (1 << 20), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip() + ("+" if changed.stdout.strip() else ""),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "load_average": os.getloadavg()[0],
        "command": " ".join(["python", *sys.argv]),
    }


def write(
    name: str,
    unit: str,
    ours: list[float],
    peers: dict[str, list[float]],
    floor: list[float] | None,
    config: dict[str, Any],
    bars: Sequence[Bar] | None = None,
) -> dict[str, Any]:
    """Writes build/bench/<name>.json from samples taken in alternation; the first peer is the one `ratio` names.

    Without `bars` they are those of `config`: `wanted_ratio` to the first peer, `wanted_ratios` to others by name,
    and `wanted_floor_ratio`.
    """
    middle = statistics.median(ours)
    peer_values = {peer: statistics.median(samples) for peer, samples in peers.items()}
    floor_value = statistics.median(floor) if floor else None
    ratios = {peer: value / middle for peer, value in peer_values.items()}
    floor_ratio = None if floor_value is None else middle / floor_value
    result = {
        "name": name,
        "unit": unit,
        "ours": round(middle, 4),
        "ratio": round(next(iter(ratios.values())), 3) if ratios else None,
        "floor": None if floor_value is None else round(floor_value, 4),
        "floor_ratio": None if floor_ratio is None else round(floor_ratio, 3),
        "peers": {peer: {"value": round(v, 4), "ratio": round(ratios[peer], 3)} for peer, v in peer_values.items()},
        "bars": [
            {**asdict(bar), "met": bar.met}
            for bar in (_ratio_bars(config, ratios, floor_ratio) if bars is None else bars)
        ],
        "samples": {"ours": ours, **peers, **({"floor": floor} if floor else {})},
        "config": config,
        "machine": machine(),
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    return result


def _ratio_bars(config: dict[str, Any], ratios: dict[str, float], floor_ratio: float | None) -> list[Bar]:
    wanted = dict(config.get("wanted_ratios", {}))
    if "wanted_ratio" in config and ratios:
        wanted.setdefault(next(iter(ratios)), config["wanted_ratio"])
    bars = [
        Bar(f"{peer} / ours", round(ratios[peer], 3), limit, at_least=True)
        for peer, limit in wanted.items()
        if peer in ratios
    ]
    if floor_ratio is not None and "wanted_floor_ratio" in config:
        bars.append(Bar("ours / floor", round(floor_ratio, 3), config["wanted_floor_ratio"]))
    return bars


def missed(results: list[dict[str, Any]]) -> list[str]:
    """A line for each bar that was not met."""
    return [
        f"{result['name']}: {bar['what']} is {bar['value']:g}{bar['unit'] and ' ' + bar['unit']}, "
        f"wanted {'>=' if bar['at_least'] else '<='} {bar['limit']:g}"
        for result in results
        for bar in result["bars"]
        if not bar["met"]
    ]


def table(results: list[dict[str, Any]]) -> str:
    rows = [("benchmark", "contender", "median", "ratio to ours", "wanted")]
    for result in results:
        unit = result["unit"]
        rows.append((result["name"], "ours", f"{result['ours']:.4g} {unit}", "", ""))
        for peer, value in result["peers"].items():
            rows.append(("", peer, f"{value['value']:.4g} {unit}", f"{value['ratio']:.2f} x", ""))
        if result["floor"] is not None:
            ratio = f"ours = {result['floor_ratio']:.2f} x floor"
            rows.append(("", "floor", f"{result['floor']:.4g} {unit}", ratio, ""))
        for what, found in result["config"].get("shown", {}).items():
            rows.append(("", what, found, "", ""))
        for bar in result["bars"]:
            rows.append(Bar(**{key: value for key, value in bar.items() if key != "met"}).cells())
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
