"""Faults in reductions whose sums travel by collectives of NCCL: what is taken for a sum, and when a lane answers."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["COLLECTIVE"]


def collective(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "collective", f"service/{file}", old, new)


COLLECTIVE = (
    collective(
        "collective-failed-and-taken",
        "What a collective that failed left half written is divided and written out.",
        "device/collective/collective_run_events.cpp",
        "  if (operated.done && found != flights_.end()) {",
        "  if (found != flights_.end()) {",
    ),
    collective(
        "collective-read-before-it-is-done",
        "A result is read as soon as its collective is launched.",
        "device/collective/collective_run.cpp",
        "flights_[results].state == Flight::State::Done",
        "flights_[results].state != Flight::State::Sums",
    ),
    collective(
        "collective-aborted-before-it-is",
        "An abort is reported while NCCL still writes.",
        "device/collective/collective_run.cpp",
        "  aborts_.push_back(command.tag);\n  return std::nullopt;",
        "  return Aborted{id_, command.tag};",
    ),
    collective(
        "collective-unloaded-while-it-is-aborted",
        "The staging memory of a plan is given away before its abort has ended.",
        "device/collective/collective_run.cpp",
        "  if (!aborts_.empty()) {\n    return aborts_.front();\n  }\n",
        "",
    ),
    collective(
        "collective-connected-before-it-is",
        "A plan says that it is connected when its communicators are yet to be built.",
        "device/collective/collective_run.cpp",
        "  link_ = Link::Connecting;\n  return std::nullopt;",
        "  link_ = Link::Connected;\n  return Connected{id_};",
    ),
    collective(
        "collective-contributed-by-nobody",
        "A sum to which no rank of any node contributed is written as a gradient.",
        "device/collective/collective_run_events.cpp",
        "block.elements + piece) > 0;",
        "block.elements + piece) >= 0;",
    ),
    collective(
        "collective-flags-of-this-node-alone",
        "Whether a rank of another node contributed is not asked.",
        "device/collective/collective_run_events.cpp",
        "        write_number(transfer.sum, to, next++, contributed ? 1 : 0);",
        "        write_number(transfer.sum, to, next++, contributed && plan_.nodes()->node == 0 ? 1 : 0);",
    ),
    collective(
        "collective-counted-by-every-node",
        "Values that are not finite, in a sum that the norm does not count, are found once by each node.",
        "device/transfer/block_pass.cpp",
        " && task.block->owned) {",
        ") {",
    ),
    collective(
        "collective-place-of-another",
        "A node takes the part that was scattered to the first member.",
        "device/collective/collective_program.cpp",
        "    made.own = scatters ? communicator.spec.own : 0;",
        "    made.own = 0;",
    ),
    collective(
        "collective-of-rounded-sums",
        "Partial sums that were to be rounded are exchanged as if they were not.",
        "device/collective/collective_program.cpp",
        "    check_fit(transfer_.partial == transfer_.sum || transfer_.blocks.empty(), [&] {",
        "    check_fit(transfer_.bucket == number_ || transfer_.blocks.empty(), [&] {",
    ),
    collective(
        "collective-lane-outlives-its-nccl",
        "A worker whose NCCL hangs in an abort is not reported as lost.",
        "device/collective/collective_run_events.cpp",
        "  const End end{lost.message, true, {}};",
        "  const End end{lost.message, false, {}};",
    ),
    collective(
        "collective-idle-ones-stay",
        "Behind an epoch that failed, communicators that another node has lost are offered again.",
        "device/collective/lane_collectives.cpp",
        "  if (of_plan.fresh) {",
        "  if (of_plan.fresh && of_plan.needed.empty()) {",
    ),
    collective(
        "collective-two-for-one-sum",
        "A block is in the collectives of two places.",
        "plan/transfer/bucket_collectives.cpp",
        "    if (fresh || made_[last->second].blocks[place] != kNoBlock) {",
        "    if (fresh) {",
    ),
)
