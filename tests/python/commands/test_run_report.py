"""`gradsync report`: what it reads of a run, what it says, and that its page needs nothing beside it."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy
import pytest
from real_daemon import binary

from gradsync import UsageError
from gradsync._cli import main
from gradsync._run_report import _picture, _replay
from gradsync._run_report._page import page, rows_of
from gradsync._run_report._run import read_run

STEPS = 400


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that clips at 1, with a NaN, a divergence, and ten steps that were done again."""
    path = tmp_path / "run.jsonl"
    norms = numpy.random.default_rng(3).lognormal(-0.7, 0.5, STEPS)
    lines: list[dict[str, Any]] = [
        {"step": step, "grad_norm": float(norm), "grad_clipped": float(norm > 1), "grad_clip_threshold": 1.0}
        for step, norm in enumerate(norms)
    ]
    lines[77] |= {"grad_norm": "NaN", "grad_clipped": 0.0, "findings": ["nonfinite"], "says": ["'<w>' of rank 1"]}
    lines[200] |= {"findings": ["divergence"]}
    lost = [{**line, "grad_norm": 99.0} for line in lines[300:310]]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines[:300], *lost, *lines[300:]]))
    return path


def test_the_rows_say_what_the_run_was(run: Path) -> None:
    found = read_run(str(run))
    rows = dict(rows_of(found, []))
    assert rows["logged"] == "400 steps, 0 to 399, every 1; 10 were logged again after a restart"
    expected = [json.loads(line) for line in run.read_text().splitlines()]
    clipped = sum(line["grad_clipped"] for line in [*expected[:300], *expected[310:]])
    assert rows["clipped"] == f"{clipped:.0f} of 400 logged steps ({clipped / 4:.1f} %)"
    assert rows["nonfinite"] == "step 77 (step 77: '<w>' of rank 1)"
    assert rows["divergence"] == "step 200"
    assert max(point.norm for point in found.points if math.isfinite(point.norm)) < 99
    assert rows["norm"].endswith(f"at the end {found.points[-1].norm:.4g}")


def test_policies_are_those_of_the_daemon(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSYNCD", binary())
    found = read_run(str(run))
    replayed = _replay.replay(found, ["percentile:percentile=90,max_norm=none", "fixed:max_norm=0.5"])
    assert not isinstance(replayed, str)
    norms: list[float] = []
    for index, point in enumerate(found.points):
        expected = math.inf if len(norms) < 100 else float(numpy.percentile(norms, 90))
        assert replayed[0].thresholds[index] == expected
        assert replayed[1].clipped[index] == (point.norm > 0.5)
        norms += [point.norm] if math.isfinite(point.norm) else []
    with pytest.raises(UsageError, match="there is no policy 'percentil'"):
        _replay.replay(found, ["percentil"])


def test_without_a_daemon_the_page_says_why_no_policy_was_tried(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSYNCD", "/nowhere/gradsyncd")
    found = read_run(str(run))
    assert dict(rows_of(found, _replay.replay(found, ["zscore"])))["policies"].startswith(
        "no policy was tried: GRADSYNCD="
    )


class Page(HTMLParser):
    """Every address of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object")
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.training
def test_a_page_needs_nothing_beside_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADSYNCD", binary())
    output = tmp_path / "report.html"
    assert main(["report", str(run), "-o", str(output)]) == 0
    found = Page()
    found.feed(output.read_text())
    assert all(address.startswith(("#", "data:")) for address in found.addresses)
    assert "'<w>' of rank 1" in found.text
    assert "would clip" in found.text
    said = capsys.readouterr().out
    assert re.search(r"^percentile +would clip \d+ of 400 logged steps", said, re.MULTILINE)
    assert re.search(r"^zscore +would clip", said, re.MULTILINE)


def test_a_picture_has_the_curves(run: Path, tmp_path: Path) -> None:
    from matplotlib import image

    output = tmp_path / "report.png"
    assert main(["report", str(run), "-o", str(output), "--policy", "none"]) == 0
    pixels = image.imread(output)
    dark = (pixels[:, :, :3] < 0.9).any(axis=2).mean()
    assert 0.01 < dark < 0.9


def test_a_long_run_is_a_page_that_can_be_sent(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    norms = numpy.random.default_rng(3).lognormal(-0.7, 0.5, 50_000)
    path.write_text("".join(f'{{"step":{step},"norm":{norm}}}\n' for step, norm in enumerate(norms)))
    found = read_run(str(path))
    svg = _picture.drawn(found, [], "svg").decode()
    assert len(page(found, [], svg)) < 1_500_000


def test_lines_of_gradsync_observe_are_read(tmp_path: Path) -> None:
    path = tmp_path / "observed.jsonl"
    line = {"step": 2, "norm": 28.5, "theirs": 40.4, "relative_difference": 0.414, "findings": ["difference"]}
    path.write_text(json.dumps(line) + "\n" + '{"step":3,"norm":28.5,"theirs":null,"findings":[]}\n{"step":4,"no')
    found = read_run(str(path))
    assert [(point.step, point.norm, point.theirs) for point in found.points] == [(2, 28.5, 40.4), (3, 28.5, None)]
    assert [*found.findings] == ["difference"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no step has a finite norm"),
        ('{"step":1,"grad_norm":"NaN"}\n', "no step has a finite norm"),
        ('{"step":1,"grad_norm":"much"}\n{"step":2,"grad_norm":1}\n', "run.jsonl:1: could not convert"),
        ("no JSON\n{}\n", "run.jsonl:1:"),
    ],
)
def test_what_is_no_run_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_run(str(path))
    assert said in str(refused.value)


def test_a_command_that_cannot_be_done_says_so(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "-o", str(tmp_path / "report.pdf")]) == 2
    assert "ends in .html or .png" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "absent.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err
