"""Faults in the communicators of NCCL: what counts as done, in which order they are built, and how they end."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["NCCL"]


def nccl(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "nccl", f"service/device/nccl/{file}", old, new)


NCCL = (
    nccl(
        "nccl-event-alone-counts",
        "An operation whose event says success is done, whatever NCCL says of its communicator.",
        "collective_queue.cpp",
        "    const NcclResult state = state_of(one);\n    if (state != NcclResult::Success && state",
        "    const NcclResult state = NcclResult::Success;\n    if (state != NcclResult::Success && state",
    ),
    nccl(
        "nccl-marked-before-it-is-launched",
        "An event is recorded while the launch is in progress, so it says success before anything was summed.",
        "collective_queue.cpp",
        "    launching_ = next;\n    return false;",
        "    note_launched(next);\n    return true;",
    ),
    nccl(
        "nccl-id-used-again",
        "A communicator is built with an id that another one had.",
        "communicator_table.cpp",
        "  check(!used_.contains(given.instance),",
        "  check(!used_.contains(given.instance) || given.id,",
    ),
    nccl(
        "nccl-id-of-another-epoch",
        "The first member takes an id that it made for an epoch that is over.",
        "communicator_table.cpp",
        "      entry.spec.own != 0 || (made != plan.offered.end() && made->second == given.instance),",
        "      entry.spec.own != 0 || made != plan.offered.end(),",
    ),
    nccl(
        "nccl-another-order-of-building",
        "Communicators are built in the order in which they became known here.",
        "communicator_table_course.cpp",
        "(next == entries_.end() || entry.facts.name < next->second.facts.name)",
        "next == entries_.end()",
    ),
    nccl(
        "nccl-several-in-the-making",
        "A communicator is begun while another one of the job is being built.",
        "communicator_table_course.cpp",
        "      return;  // its members all build this one now",
        "      continue;",
    ),
    nccl(
        "nccl-abort-without-a-group",
        "Communicators are aborted one after the other, and wait for each other's kernels.",
        "abort_thread.cpp",
        "      note(library.abort(member.communicator));",
        "      note(library.group_end());\n      note(library.abort(member.communicator));\n"
        "      note(library.group_start());",
    ),
    nccl(
        "nccl-aborted-while-it-still-writes",
        "Memory is called reusable before NCCL has aborted.",
        "communicators.cpp",
        "  perform(std::move(actions), now);\n}\n\nvoid Communicators::unload",
        "  perform(std::move(actions), now);\n  events_.emplace_back(Aborted{plan});\n}\n\nvoid Communicators::unload",
    ),
    nccl(
        "nccl-operations-outlive-their-abort",
        "What an abort ended is asked for its success.",
        "communicators.cpp",
        "  drop(number);\n",
        "",
    ),
    nccl(
        "nccl-only-one-fails",
        "The other communicators of a job go on behind the first error.",
        "communicator_table_course.cpp",
        "    if (entry.job == job && lives(entry)) {\n      entry.facts.state = State::Failed;",
        "    if (entry.job == job && lives(entry) && slot == entries_.begin()->first) {\n"
        "      entry.facts.state = State::Failed;",
    ),
    nccl(
        "nccl-stages-in-any-order",
        "A stage is launched before its turn.",
        "launch_order.cpp",
        "  if (step_[next_] != launched) {",
        "  if (step_[next_].type != launched.type) {",
    ),
    nccl(
        "nccl-a-sixth-communicator",
        "Communicators take as much memory of a GPU as plans like.",
        "communicator_table.hpp",
        "kMost = 5;",
        "kMost = 6;",
    ),
    nccl(
        "nccl-of-one-member",
        "A communicator of one member is built, with all of its buffers.",
        "communicator_table.cpp",
        "  check(spec.ranks.size() > 1,",
        "  check(!spec.ranks.empty(),",
    ),
    nccl(
        "nccl-shared-by-jobs",
        "An operation of one job waits for the peers of another.",
        "communicator_table.cpp",
        "    return each.second.job == job && each.second.facts.name == name && lives(each.second);",
        "    return job != 0 && each.second.facts.name == name && lives(each.second);",
    ),
    nccl(
        "nccl-hung-abort-is-waited-for",
        "A worker whose NCCL hangs in its abort is never replaced.",
        "communicator_table_course.cpp",
        "*entry.abort_deadline <= now && !lost_) {",
        "*entry.abort_deadline <= now && lost_) {",
    ),
    nccl(
        "nccl-any-version",
        "A library without the functions that are needed is loaded.",
        "nccl_library.cpp",
        "  if (version_ < kLeastVersion ||",
        "  if (version_ < kLeastVersion - kLeastVersion ||",
    ),
)
