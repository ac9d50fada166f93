"""docs/operate/security.md names each limit with the value that the daemon has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from daemon import run_command

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| (?P<limit>[^|]+) \| (?P<value>[\d,]+) \| (?:`(?P<setting>[a-z_.]+)`)? ?\|$", re.MULTILINE)
FIXED = {  # where the code has it: a file below service/, and what stands before the value
    "ranks of a job": ("engine/types.hpp", "world_size ="),
    "life of a token, ms": ("engine/types.hpp", "token{"),
    "depth of a message": ("rpc/types.hpp", "depth ="),
    "requests of a batch": ("rpc/types.hpp", "batch_items ="),
    "calls of a connection that wait": ("rpc/dispatcher.cpp", "kCallsInFlight ="),
    "subscriptions of a connection": ("rpc/types.hpp", "subscriptions ="),
    "events kept of a subscription": ("rpc/types.hpp", "event_queue ="),
    "bytes of an unread answer's queue, per connection": ("net/types.hpp", "write_queue_bytes ="),
    "bytes of unread answers, all connections": ("net/types.hpp", "unread_bytes ="),
    "bytes of half-sent messages, all connections": ("net/types.hpp", "partial_bytes ="),
    "links of other daemons that have not joined": ("net/limits/connection_pools.hpp", "kPeer ="),
    "such links of one address": ("net/limits/connection_pools.hpp", "kPeerOfAddress ="),
    "ms until a link has joined": ("net/peer_types.hpp", "join{"),
    "bytes of a text of a link": ("net/peer_types.hpp", "link_message_bytes ="),
    "bytes that wait to be sent over a link": ("net/peer_types.hpp", "link_unread_bytes ="),
    "bytes of half-sent texts, links that have not joined": ("net/peer_types.hpp", "joining_bytes ="),
    "pages of a declaration": ("rpc/types.hpp", "declare_pages ="),
    "bytes of declarations, all jobs": ("engine/types.hpp", "declared_bytes ="),
    "bytes of reports that are kept, all jobs": ("engine/types.hpp", "report_bytes ="),
    "bytes of a name": ("plan/limits.hpp", "kMaxNameBytes ="),
    "clip groups of a job": ("plan/limits.hpp", "kMaxClipGroups ="),
    "probes of GPU memory that wait": ("engine/memory_probes.hpp", "kMostWaiting ="),
    "calls of `doctor.run` that wait": ("app/daemon/node_doctor.hpp", "kMostWaiting ="),
    "ms of an examination of the node": ("app/doctor/examination.hpp", "deadline{"),
    "bytes of what an examination found": ("app/doctor/examination.hpp", "most_bytes ="),
    "threads that plan": ("engine/plan/planner.hpp", "kThreads ="),
    "threads that close": ("net/socket/closer.hpp", "kMostThreads ="),
    "policy files of a folder": ("engine/policies/policy_folder.hpp", "kMostPolicyFiles ="),
}


def documented() -> dict[str, tuple[int, str | None]]:
    text = (ROOT / "docs/operate/security.md").read_text()
    return {
        found["limit"].split(" (")[0]: (int(found["value"].replace(",", "")), found["setting"])
        for found in ROW.finditer(text)
    }


def shown() -> dict[str, int]:
    """The settings of `gradsyncd config show` that are numbers."""
    numbers, section = {}, ""
    for line in run_command("config", "show").stdout.splitlines():
        if found := re.fullmatch(r"\[(\w+)\]", line):
            section = found[1]
        elif found := re.fullmatch(r"(\w+) = (\d+)", line):
            numbers[f"{section}.{found[1]}"] = int(found[2])
    return numbers


def in_the_code(file: str, before: str) -> int:
    """A number, or one shifted to the left, behind that text."""
    text = (ROOT / "service" / file).read_text()
    found = re.search(rf"\b{re.escape(before)}\s*\{{?([\d'x]+)[uU]?(?:\s*<<\s*(\d+))?", text)
    assert found, f"{file} has no {before!r}"
    return int(found[1].replace("'", "")) << int(found[2] or 0)


def test_every_setting_of_the_limits_is_documented_with_its_default() -> None:
    settings = shown()
    rows = {setting: value for value, setting in documented().values() if setting}
    assert {name for name in settings if name.startswith("limits.")} <= rows.keys()
    for setting, value in rows.items():
        assert settings[setting] == value, setting


@pytest.mark.parametrize("limit", FIXED)
def test_a_limit_without_a_setting_is_as_documented(limit: str) -> None:
    assert documented()[limit] == (in_the_code(*FIXED[limit]), None)


def test_no_limit_is_documented_that_nothing_holds() -> None:
    assert {limit for limit, (_, setting) in documented().items() if setting is None} == FIXED.keys()
