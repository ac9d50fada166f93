"""Faults in which data connection counts for which epoch and life of a daemon, and in what a cut one leaves behind."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["LINKS"]


def links(name: str, fault: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "links", "service/app/peer/data_links.cpp", old, new)


LINKS = (
    links(
        "the-epoch-of-a-connection-is-not-compared",
        "A data connection of an epoch that is over is taken for the one that stands.",
        "  if (hello.epoch < wish.epoch || end == wish.ends.end()) {",
        "  if (end == wish.ends.end()) {",
    ),
    links(
        "a-connection-for-the-life-before",
        "A data connection that was meant for the daemon before this one is taken.",
        "  if (link.hello.to != incarnation_) {",
        "  if (link.hello.to.empty()) {",
    ),
    links(
        "a-connection-of-the-life-before",
        "A data connection is taken that a daemon made which has ended since.",
        "    return each.end.node > wish.own && each.end.incarnation == hello.from;",
        "    return each.end.node > wish.own && !hello.from.empty();",
    ),
    links(
        "an-epoch-that-is-over-keeps-its-wish",
        "What was dialled for an epoch that is over is handed to the job all the same.",
        "found != wishes_.end()) {\n    give_up(found->second);",
        "found != wishes_.end()) {\n    static_cast<void>(found->second);",
    ),
    links(
        "one-connection-is-enough",
        "A node counts as connected when one of its two connections is there.",
        "    if (!std::ranges::all_of(end.slots, [](const Slot& slot) { return slot.socket.valid(); })) {",
        "    if (!std::ranges::any_of(end.slots, [](const Slot& slot) { return slot.socket.valid(); })) {",
    ),
    Mutant(
        "half-a-message-is-taken",
        "A message counts as received when a part of it is here.",
        "links",
        "service/device/wire/wire_reader.cpp",
        "  if (!target().empty()) {\n    read();",
        "  if (done_ == 0) {\n    read();",
    ),
    Mutant(
        "an-abort-leaves-the-wire",
        "Behind an abort the wire still reads and writes staging memory.",
        "links",
        "service/device/transfer/transfer_run.cpp",
        '    wire_.reset();\n    fail_all({fmt::format("attempt {} was aborted',
        '    fail_all({fmt::format("attempt {} was aborted',
    ),
)
