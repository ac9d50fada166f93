"""Result files of the benchmarks: medians, ratios, and the machine, commit and command behind them."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "bench"


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
) -> dict[str, Any]:
    """Writes build/bench/<name>.json from samples taken in alternation; the first peer is the one `ratio` names."""
    middle = statistics.median(ours)
    peer_values = {peer: statistics.median(samples) for peer, samples in peers.items()}
    floor_value = statistics.median(floor) if floor else None
    result = {
        "name": name,
        "unit": unit,
        "ours": round(middle, 4),
        "ratio": round(next(iter(peer_values.values())) / middle, 3) if peer_values else None,
        "floor": None if floor_value is None else round(floor_value, 4),
        "floor_ratio": None if floor_value is None else round(middle / floor_value, 3),
        "peers": {peer: {"value": round(v, 4), "ratio": round(v / middle, 3)} for peer, v in peer_values.items()},
        "samples": {"ours": ours, **peers, **({"floor": floor} if floor else {})},
        "config": config,
        "machine": machine(),
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    return result


def table(results: list[dict[str, Any]]) -> str:
    rows = [("benchmark", "contender", "median", "ratio to ours", "wanted")]
    for result in results:
        unit, wanted = result["unit"], result["config"].get("wanted_ratio")
        rows.append((result["name"], "ours", f"{result['ours']:.1f} {unit}", "", ""))
        for index, (peer, value) in enumerate(result["peers"].items()):
            bar = f">= {wanted}" if wanted and index == 0 else ""
            rows.append(("", peer, f"{value['value']:.1f} {unit}", f"{value['ratio']:.2f} x", bar))
        if result["floor"] is not None:
            most = result["config"].get("wanted_floor_ratio")
            ratio = f"ours = {result['floor_ratio']:.2f} x floor"
            rows.append(("", "floor", f"{result['floor']:.1f} {unit}", ratio, f"<= {most}" if most else ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
