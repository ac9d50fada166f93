"""An answer of status.get as what `rich` draws. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gradsync._wire import decode_number

from ._history import History, JobHistory

__all__ = ["view"]

_BARS = "▁▂▃▄▅▆▇█"
_WAITS_S, _WAITS_LONG_S = 1.0, 10.0
_RANKS = 32  #: of a job; those that wait longest come first where there are more
_STYLES = dict.fromkeys(("serving", "ready", "stepping", "attached", "declared", "idle", "reducing"), "green")
_STYLES["disconnected"] = "red"


def view(status: Mapping[str, Any], history: History) -> RenderableType:
    """The daemon in a line, and a panel for each job."""
    head = Text.assemble(
        ("gradsyncd ", "bold"),
        f"{status['version']}  pid {status['pid']}  ",
        _state(status["state"]),
        f"  up {_seconds(status['uptime_s'])}",
    )
    parts: list[RenderableType] = [head]
    parts += [_job(job, history.of(job)) for job in status["jobs"]]
    if not status["jobs"]:
        parts.append(Text("no jobs: a trainer appears here when it attaches", "dim"))
    if status["jobs_left_out"]:
        parts.append(Text(f"{status['jobs_left_out']} more jobs do not fit into one answer", "dim"))
    return Group(*parts)


def _job(job: Mapping[str, Any], history: JobHistory) -> Panel:
    title = Text.assemble((str(job["job"]), "bold"), "  ", _state(job["state"]))
    parts: list[RenderableType] = [_figures(job, history), *_policies(job), *_communicators(job), _ranks(job)]
    if job["absent"]:
        lowest = ", ".join(map(str, job["absent_ranks"]))
        more = ", …" if job["absent"] > len(job["absent_ranks"]) else ""
        parts.append(Text(f"no process: rank {lowest}{more}", "yellow"))
    return Panel(Group(*parts), title=title, title_align="left", subtitle=job["reason"] or None, box=ROUNDED)


def _figures(job: Mapping[str, Any], history: JobHistory) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    rate = history.steps_per_s
    age = job["last_commit_age_s"]
    failed = Text(f"{job['steps_failed']} failed", "red" if job["steps_failed"] else "dim")
    grid.add_row(
        "step",
        Text.assemble(
            str(job["last_step"]) if job["last_step"] >= 0 else "none yet",
            f" (epoch {job['epoch']}, attempt {job['attempt']})  {job['steps_committed']} done, ",
            failed,
            "" if rate is None else f"  {rate:.3g} steps/s",
            "" if age < 0 else f"  last {_seconds(age)} ago",
        ),
    )
    grid.add_row("norm", _norm(job, history))
    sums = f", partial sums in {job['partial_sums']}" if "partial_sums" in job else ""
    grid.add_row("plan", f"{job['tensors']} tensors in {job['buckets']} buckets over {job['data_path']}{sums}")
    return grid


def _norm(job: Mapping[str, Any], history: JobHistory) -> Text:
    norm, threshold = decode_number(job["norm"]), decode_number(job["threshold"])
    if job["steps_committed"] == 0:
        return Text("–", "dim")
    shown = Text(f"{norm:.4g}", "bold" if math.isfinite(norm) else "bold red")
    clips = math.isfinite(threshold) and not norm <= threshold
    limit = f"  threshold {threshold:.4g}" if math.isfinite(threshold) else "  no threshold"
    return Text.assemble(
        shown, "  ", (_sparkline(history.norms), "cyan"), limit, ("  clipped", "yellow") if clips else ""
    )


def _sparkline(values: Iterable[float]) -> str:
    """The values between the least and the greatest of them; what is not finite is an exclamation mark."""
    values = list(values)
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "!" * len(values)
    low, span = min(finite), max(finite) - min(finite)
    top = len(_BARS) - 1
    return "".join(
        "!" if not math.isfinite(value) else _BARS[round((value - low) / span * top) if span > 0 else 0]
        for value in values
    )


def _policies(job: Mapping[str, Any]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for policy in job["clip"]:
        name = f"clip group {policy['group']}, {policy['policy']}{', watches' if policy['watches'] else ''}: "
        threshold = decode_number(policy["threshold"])
        rate = f"{100 * policy['clip_rate']:.3g} % of {policy['steps']} steps clipped, threshold {threshold:.4g}"
        lines.append(Text(name + (rate if math.isfinite(threshold) else "no threshold")))
        lines += [Text(f"  ! {sign}", "yellow") for sign in policy["signs"]]
    return lines


def _communicators(job: Mapping[str, Any]) -> list[RenderableType]:
    return [
        Text.assemble(
            ("over nodes ", "dim"),
            f"{group['name']} {len(group['ranks'])} ranks, ",
            _state(group["state"]),
            f": {_bytes(group['sent_bytes'])} sent, {_bytes(group['received_bytes'])} received",
        )
        for group in job["communicators"]
    ]


def _ranks(job: Mapping[str, Any]) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), header_style="dim")
    for name, justify in (("rank", "right"), ("state", "left"), ("pid", "right"), ("memory", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("waits")
    table.add_column("measured by", no_wrap=True)
    ranks = job["ranks"]
    shown = ranks if len(ranks) <= _RANKS else sorted(ranks, key=lambda rank: -rank["waited_s"])[:_RANKS]
    for rank in shown:
        table.add_row(
            str(rank["rank"]),
            Text.assemble(_state(rank["state"]), (" paused", "yellow") if rank["paused"] else ""),
            str(rank["pid"]),
            _bytes(rank["arena_bytes"]),
            _wait(rank),
            rank["measured_by"],
        )
    if len(shown) == len(ranks):
        return table
    return Group(table, Text(f"{len(ranks) - len(shown)} more ranks wait less", "dim"))


def _wait(rank: Mapping[str, Any]) -> Text:
    if not rank["waiting_in"]:
        return Text("")
    waited = rank["waited_s"]
    style = "red" if waited > _WAITS_LONG_S else "yellow" if waited > _WAITS_S else ""
    return Text(f"{_seconds(waited)} in {rank['waiting_in']}", style)


def _state(state: str) -> Text:
    style = _STYLES.get(state, "yellow")
    return Text.assemble(("● ", style), (state, style))


def _seconds(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
