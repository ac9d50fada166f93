"""The trace-event format (JSON object form), as far as gradsync writes it: each rule is asserted."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

Event = dict[str, Any]
PHASES = {"M", "X", "i", "b", "e"}


def check_trace(trace: dict[str, Any]) -> list[Event]:
    """The events, if a viewer takes every one of them for what it is."""
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = trace["traceEvents"]
    for event in events:
        assert event["ph"] in PHASES, event
        assert isinstance(event["name"], str), event
        assert event["name"], event
        assert all(isinstance(event[key], int) and event[key] > 0 for key in ("pid", "tid")), event
        assert ("ts" in event) == (event["ph"] != "M"), event
    _check_names(events)
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert all(isinstance(time, int) for time in times)
    assert times == sorted(times)
    assert times[:1] in ([], [0]), "the first is 0"
    _check_nesting([event for event in events if event["ph"] == "X"])
    _check_pairs([event for event in events if event["ph"] in "be"])
    assert all(event["s"] in ("g", "p", "t") for event in events if event["ph"] == "i")
    return events


def _check_names(events: list[Event]) -> None:
    """Processes and threads have names, and these come first."""
    phases = [event["ph"] == "M" for event in events]
    assert phases == sorted(phases, reverse=True)
    named = {(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"}
    assert all(event["args"]["name"] for event in events if event["ph"] == "M")
    assert len(named) == sum(phases), "a thing has one name"
    for event in events:
        assert ("process_name", event["pid"], event["tid"]) in named
        assert ("thread_name", event["pid"], event["tid"]) in named


def _check_nesting(spans: list[Event]) -> None:
    """Spans of one thread lie beside each other, or one within the other."""
    lines: dict[tuple[int, int], list[Event]] = {}
    for span in spans:
        assert isinstance(span["dur"], int), span
        assert span["dur"] >= 0, span
        lines.setdefault((span["pid"], span["tid"]), []).append(span)
    for line in lines.values():
        for one, next_one in pairwise(line):
            end, next_end = one["ts"] + one["dur"], next_one["ts"] + next_one["dur"]
            assert end <= next_one["ts"] or next_end <= end, (one, next_one)


def _check_pairs(halves: list[Event]) -> None:
    """Each begin has its end behind it, of the same process, category, id and name."""
    opened: dict[tuple[int, str, str, str], Event] = {}
    for half in halves:
        key = (half["pid"], half["cat"], half["id2"]["local"], half["name"])
        if half["ph"] == "b":
            assert key not in opened, half
            opened[key] = half
        else:
            assert opened.pop(key)["ts"] <= half["ts"]
    assert not opened
