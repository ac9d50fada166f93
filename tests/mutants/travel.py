"""Faults in how gradients travel between the daemons of a job: connections, buckets, what is written, and failures."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["TRAVEL"]


def engine(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "travel", f"service/engine/{file}", old, new)


TRAVEL = (
    engine(
        "begins-without-connections",
        "A node says that it is connected while its lane has no connections.",
        "job/job_communicators.cpp",
        "  } else if (active_ && !active_->linked.empty()) {",
        "  } else if (active_ && active_->linked.size() > 256) {",
    ),
    engine(
        "late-connections-are-taken",
        "Connections of an epoch that is over go to the plan of the next one.",
        "job/job_peers.cpp",
        "  if (epochs_.loads() && active_ && event.epoch == epochs_.epoch()) {",
        "  if (epochs_.loads() && active_) {",
    ),
    engine(
        "a-late-failure-to-connect-counts",
        "Connections of an epoch that is over, which could not be made, refuse the next one.",
        "job/job_peers.cpp",
        "  if (event.epoch == epochs_.epoch()) {",
        "  if (event.epoch != 0) {",
    ),
    engine(
        "a-lost-connection-names-nobody",
        "Where a connection breaks, no rank hears which node was at its other end.",
        "job/job_step.cpp",
        "    if (report.wire_lost) {",
        "    if (report.wire_lost && report.tag + 1 == 0) {",
    ),
    engine(
        "a-bucket-of-others-begins-a-step",
        "A node begins an attempt by itself with a bucket of which it has nothing.",
        "step/step_machine.cpp",
        "  return held || begun();",
        "  return true;",
    ),
    engine(
        "voted-before-written",
        "A node votes for a step whose gradients are not multiplied.",
        "step/step_machine_end.cpp",
        "      if (travels()) {\n        launch_outcomes(",
        "      if (shared()) {\n        launch_outcomes(",
    ),
    engine(
        "absent-is-written",
        "What no rank of any node has a gradient of is written as zero.",
        "step/step_machine_end.cpp",
        "      launch.absent = math.absent;",
        "      launch.absent.clear();",
    ),
    engine(
        "absent-is-written-in-halves",
        "The same where the norm was asked for first.",
        "step/step_machine_end.cpp",
        "      launch.absent = norm_.math.absent;",
        "      launch.absent.clear();",
    ),
    engine(
        "one-node-says-absent",
        "A tensor that one node has no gradient of is left out on all.",
        "peers/sums/node_sums.cpp",
        "      const bool empty = std::ranges::includes(without, sources_of(sum, node_of_rank));",
        "      const bool empty = !without.empty() && !sources_of(sum, node_of_rank).empty();",
    ),
    engine(
        "a-tied-copy-does-not-count",
        "A tensor is left out although a tied copy of it on another node has a gradient.",
        "peers/sums/node_sums.cpp",
        "  for (const plan::SumMember& member : sum.sources) {\n    nodes.insert(node_of_rank[member.rank]);",
        "  for (const plan::SumMember& member : sum.sources) {\n    if (member.copy != 0) {\n      continue;\n    }\n"
        "    nodes.insert(node_of_rank[member.rank]);",
    ),
    engine(
        "the-epoch-goes-on",
        "An attempt fails where gradients travel, and the next one begins on the same connections.",
        "peers/coordinator_attempt.cpp",
        "  if (course_.plan && course_.plan->options.data_path == plan::DataPath::Arena) {",
        "  if (course_.plan && course_.plan->world_size < 0) {",
    ),
    engine(
        "a-closed-connection-is-the-reason",
        "Ranks hear that a connection closed, and not why the node at its other end failed.",
        "peers/member_machine_local.cpp",
        "  if (failed.error.code == ErrorCode::NodeLost) {",
        "  if (failed.error.code == ErrorCode::NodeLost && options_.version.empty()) {",
    ),
    engine(
        "a-held-failure-is-forgotten",
        "Nobody hears that a connection broke, where its other end does not say why.",
        "peers/member_machine.cpp",
        "  if (held_ && held_->until <= now) {",
        "  if (held_ && held_->until < TimePoint{}) {",
    ),
    engine(
        "a-failure-waits-for-the-lane",
        "Other nodes hear why an attempt failed when its connections have closed already.",
        "step/step_machine_fail.cpp",
        "    if ((travels() || !busy()) && !std::exchange(",
        "    if (!busy() && !std::exchange(",
    ),
    engine(
        "a-late-rank-elsewhere-is-not-named",
        "A transfer that hangs fails on each node by itself, and nobody says who is late.",
        "step/step_machine.hpp",
        " || (travels() && course_.phase == Phase::Finishing && !course_.error);",
        ";",
    ),
    engine(
        "answered-while-the-lane-writes",
        "Ranks hear of the end of their step while the lane may still write their gradients.",
        "step/step_machine_fail.cpp",
        "  if (busy()) {\n    return;\n  }\n  Error error = std::move(*course_.error);",
        "  Error error = std::move(*course_.error);",
    ),
    engine(
        "one-node-alone-is-not-asked",
        "What one node alone gets, and nobody has counted, stays out of the norm.",
        "peers/coordinator_compare.cpp",
        "  return one.nodes.size() == 1 && hash != 0 && device::is_uncounted(hash);",
        "  return one.nodes.empty() && hash != 0 && device::is_uncounted(hash);",
    ),
    engine(
        "any-sum-counts",
        "The rows of a part are judged by rank, so that another sum than the first one counts.",
        "peers/sums/copies_of_nodes.cpp",
        "    return std::tuple(row.tensor, row.box, travels ? counters.of(row) : 0, row.rank);",
        "    return std::tuple(row.tensor, row.box, 0U, row.rank);",
    ),
    engine(
        "zeros-are-a-gradient",
        "Ranks that get zeros, because nobody contributed to their sum, are not said to differ.",
        "peers/sums/copies_of_nodes.cpp",
        "      if (row.row.stamp == 0 && !travels_) {",
        "      if (row.row.stamp == 0) {",
    ),
    engine(
        "parts-of-one-node-alone-are-not-compared",
        "A part whose results are on one node, to which others contribute, is in no class.",
        "peers/sums/comparison.cpp",
        "    if (stats && held.nodes.size() < 2) {",
        "    if (held.nodes.size() < 2) {",
    ),
    engine(
        "partial-sums-are-exact-whatever-was-declared",
        "A job that declares partial sums in bfloat16 sends them in float32.",
        "peers/sums/node_plan.cpp",
        "  options.partial_sums = plan.options.partial_sums;",
        "  options.partial_sums = plan::PartialSums::Exact;",
    ),
    engine(
        "staging-memory-is-not-counted",
        "A plan over nodes takes 64 MiB that no limit of declarations sees.",
        "peers/sums/node_plan.cpp",
        "  return bytes + std::min(staged, nodes.staging_bytes);",
        "  return bytes + std::min(staged, nodes.staging_bytes) / 64;",
    ),
)
