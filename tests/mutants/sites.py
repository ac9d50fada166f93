"""Faults in what a node with several GPUs does of a job over nodes, where each of them is a site."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["SITES"]


def engine(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "sites", f"service/engine/{file}", old, new)


SITES = (
    engine(
        "sites-asked-before-all-have-finished",
        "A node asks with what its first lane has measured.",
        "step/step_machine_end.cpp",
        "  if (++course_.finished < lanes_.size()) {",
        "  if (++course_.finished < 1) {",
    ),
    engine(
        "sites-on-one-lane",
        "The second GPU of a node gets no bucket.",
        "step/step_machine.cpp",
        "    if (!is_sites()) {",
        "    if (!is_sites() || lanes_.size() > 1) {",
    ),
    engine(
        "sites-without-the-second",
        "The coordinator adds up what the first GPU of each node has measured, twice.",
        "peers/coordinator_attempt.cpp",
        "sites[site.index];",
        "sites[0 * site.index];",
    ),
    engine(
        "sites-rows-of-the-first",
        "Rows of the second GPU of a node are taken for those of the first.",
        "peers/coordinator_compare.cpp",
        "const SiteNumber number = sites[rows.site];",
        "const SiteNumber number = sites[rows.site * 0];",
    ),
    engine(
        "sites-ids-for-all",
        "A GPU gets the ids of communicators that it is no member of.",
        "job/job_communicators.cpp",
        "return std::ranges::count(active_->needed[share], id.name) != 0;",
        "return std::ranges::count(active_->needed[share], id.name) >= 0;",
    ),
    engine(
        "sites-connected-too-early",
        "A node is connected when the communicators of its first GPU are built.",
        "job/job_load.cpp",
        "--active_->connecting == 0",
        "active_->connecting-- > 0",
    ),
    engine(
        "sites-memory-of-all",
        "A GPU has the memory of all ranks of its node mapped.",
        "job/job_load.cpp",
        "      if (is_on(number, share)) {",
        "      if (is_on(number, share) || loading.comparison) {",
    ),
    engine(
        "sites-unused-everywhere",
        "A GPU hears of tensors that ranks of another one have no gradient of.",
        "job/job_actions.cpp",
        "!= site;",
        "== ~site;",
    ),
    engine(
        "sites-fresh-on-the-first",
        "Communicators of an epoch that never began go on being built on the second GPU.",
        "job/job_load.cpp",
        "      if (fresh_communicators_ && ",
        "      if (fresh_communicators_ && share == active_->shares.front() && ",
    ),
    engine(
        "sites-without-devices",
        "A node does not say that its gradients are on several GPUs.",
        "job/job_peers.cpp",
        "  if (known.size() < 2) {",
        "  if (known.size() < 9) {",
    ),
    engine(
        "sites-by-node-alone",
        "Devices of equal numbers on two nodes are one site.",
        "peers/roster_by_rank.cpp",
        "known.try_emplace({node, devices.empty()",
        "known.try_emplace({0 * node, devices.empty()",
    ),
    Mutant(
        "collectives-begin-at-the-block",
        "Blocks that are all-reduced together lie one element too early.",
        "collective",
        "service/plan/transfer/bucket_collectives.cpp",
        "    one.begins.push_back(begin);",
        "    one.begins.push_back(begin - 1);",
    ),
)
