"""Draws a run by matplotlib: norms with thresholds and clips, other policies, the share of clipped steps, findings."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradsync.errors import UsageError

from ._replay import Replayed
from ._run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["drawn"]

_WIDTH_IN, _PANEL_IN, _STRIP_IN = 11.0, 2.6, 0.3
_SHARE_OF = 100  # logged steps, of which a share of clips is one
_MANY = 5000  # points, from which on a picture of vectors is larger than one of dots
_COLOURS = ("tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:pink", "tab:olive", "tab:cyan", "tab:gray")


def drawn(run: Run, replayed: Sequence[Replayed], kind: str) -> bytes:
    """The picture as "png" or "svg".

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("gradsync report draws by matplotlib: pip install matplotlib, or gradsync[report]") from error
    findings = run.findings
    heights = [_PANEL_IN, *([_PANEL_IN] if replayed else []), _PANEL_IN / 2]
    heights += [_STRIP_IN * (1 + len(findings))] if findings else []
    figure = Figure(figsize=(_WIDTH_IN, sum(heights) + 0.8), layout="constrained")
    axes: list[Axes] = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    _draw_run(axes[0], run)
    if replayed:
        _draw_policies(axes[1], run, replayed)
    shares = axes[2 if replayed else 1]
    _draw_shares(shares, run, replayed)
    if findings:
        _draw_findings(axes[-1], run)
    axes[-1].set_xlabel("step")
    for one in axes:
        one.margins(x=0.01)
    picture = io.BytesIO()
    figure.savefig(picture, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    return picture.getvalue()


def _draw_run(axes: Axes, run: Run) -> None:
    steps = [point.step for point in run.points]
    coarse = len(steps) > _MANY
    style: dict[str, Any] = {"linewidth": 0.8, "rasterized": coarse}
    axes.plot(steps, [_shown(point.norm) for point in run.points], color="tab:blue", label="norm", **style)
    if any(point.theirs is not None for point in run.points):
        theirs = [_shown(math.nan if point.theirs is None else point.theirs) for point in run.points]
        axes.plot(steps, theirs, color="tab:gray", linestyle=":", label="the framework's norm", **style)
    if any(math.isfinite(point.threshold) for point in run.points):
        thresholds = [_shown(point.threshold) for point in run.points]
        axes.step(steps, thresholds, where="post", color="black", label="threshold", linewidth=1.2, rasterized=coarse)
    marks = {"linestyle": "none", "rasterized": coarse}
    clipped = [point for point in run.clipped if math.isfinite(point.norm)]
    if clipped:
        where = [point.step for point in clipped], [point.norm for point in clipped]
        axes.plot(*where, marker=".", markersize=4, color="tab:red", label="clipped", **marks)  # type: ignore[arg-type]
    _finish(axes, "gradient norm")
    if run.nonfinite:
        top = axes.get_ylim()[1]
        where = [point.step for point in run.nonfinite], [top] * len(run.nonfinite)
        axes.plot(*where, marker="x", color="black", label="NaN or infinity", clip_on=False, **marks)  # type: ignore[arg-type]
        axes.legend(loc="upper right", fontsize="small")


def _draw_policies(axes: Axes, run: Run, replayed: Sequence[Replayed]) -> None:
    steps = [point.step for point in run.points]
    coarse = len(steps) > _MANY
    norms = [_shown(point.norm) for point in run.points]
    axes.plot(steps, norms, color="tab:blue", alpha=0.35, linewidth=0.8, rasterized=coarse)
    for one, colour in zip(replayed, _COLOURS, strict=False):
        thresholds = [_shown(value) for value in one.thresholds]
        axes.step(steps, thresholds, where="post", color=colour, linewidth=1.2, label=one.policy, rasterized=coarse)
    _finish(axes, "what others\nwould clip at")


def _draw_shares(axes: Axes, run: Run, replayed: Sequence[Replayed]) -> None:
    steps = [point.step for point in run.points]
    axes.plot(steps, _shares([point.clipped for point in run.points]), color="tab:red", label="this run", linewidth=1.2)
    for one, colour in zip(replayed, _COLOURS, strict=False):
        axes.plot(steps, _shares(one.clipped), color=colour, linewidth=1, label=one.policy)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"% clipped of the\nlast {_SHARE_OF} logged")
    axes.legend(loc="upper right", fontsize="small")


def _draw_findings(axes: Axes, run: Run) -> None:
    kinds = list(run.findings)
    for row, kind in enumerate(kinds):
        where = [point.step for point in run.findings[kind]]
        axes.plot(where, [row] * len(where), marker="|", markersize=10, linestyle="none", color="tab:red")
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_ylim(-0.6, len(kinds) - 0.4)


def _finish(axes: Axes, label: str) -> None:
    axes.set_yscale("log", nonpositive="mask")
    axes.set_ylabel(label)
    axes.grid(alpha=0.25)
    axes.legend(loc="upper right", fontsize="small")


def _shares(clipped: Sequence[bool]) -> list[float]:
    """The share of clipped steps in per cent, of each step and those before it."""
    shares = []
    count = 0
    for index, one in enumerate(clipped):
        count += one - (clipped[index - _SHARE_OF] if index >= _SHARE_OF else 0)
        shares.append(100 * count / min(index + 1, _SHARE_OF))
    return shares


def _shown(value: float) -> float:
    """What a logarithmic axis can show; a gap where it cannot."""
    return value if math.isfinite(value) and value > 0 else math.nan
