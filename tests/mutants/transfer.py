"""Faults in how the lanes of several nodes add up gradients."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["TRANSFER"]


def transfer(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "transfer", f"service/device/transfer/{file}", old, new)


def queue(name: str, fault: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "transfer", "service/device/queue/under_way.hpp", old, new)


TRANSFER = (
    transfer(
        "nodes-added-backwards",
        "An owner adds the partial sums from the last node to the first.",
        "block_pass.cpp",
        "      scratch.sources.push_back({partial + chunk.at * plan::size_of(dtype), dtype});",
        "      scratch.sources.insert(scratch.sources.begin(), {partial + chunk.at * plan::size_of(dtype), dtype});",
    ),
    transfer(
        "partial-sums-divided",
        "Each node divides, and so does the owner.",
        "block_pass.cpp",
        "  work.power = PowerKind::None;",
        "  work.power = PowerKind::None;\n  work.divisor = plan_.layout().buckets[task.bucket].divisor;",
    ),
    transfer(
        "own-partial-sum-rounded",
        "An owner takes its own partial sum for one in the format of messages.",
        "block_pass.cpp",
        "partial == task.staged->own ? transfer.sum : transfer.partial;",
        "partial == nullptr ? transfer.sum : transfer.partial;",
    ),
    transfer(
        "nothing-is-plus-zero",
        "A node without contributions sends +0.0, which turns a sum of −0.0 into it.",
        "block_pass.cpp",
        "    std::fill_n(reinterpret_cast<float*>(to), count, -0.0F);",
        "    std::fill_n(reinterpret_cast<float*>(to), count, 0.0F);",
    ),
    transfer(
        "unused-written-at-once",
        "A result that nobody contributed to is written, though the tensor may be absent.",
        "block_pass.cpp",
        "piece.sum) == SumKnown::Contributed) {",
        "piece.sum) != SumKnown::Nothing) {",
    ),
    transfer(
        "replicas-of-blocks-lost",
        "A value that is not finite in a sum that is not counted leaves the norm finite.",
        "block_pass.cpp",
        "  } else if (stats.nonfinite != 0 &&",
        "  } else if (stats.nonfinite > 1'000'000 &&",
    ),
    transfer(
        "own-contribution-forgotten",
        "An owner asks the other nodes alone who contributed.",
        "transfer_run_blocks.cpp",
        "      contributed = plan_.contributed(of.tensor, plan_.sums_of(plan_.layout().parts[part])[of.sum]);",
        "      contributed = false;",
    ),
    transfer(
        "added-before-all-came",
        "A block is added up while a partial sum is on its way.",
        "transfer_run.cpp",
        "if (budget == 0 || !block.summed || block.missing != 0) {",
        "if (budget == 0 || !block.summed || block.missing > 1) {",
    ),
    transfer(
        "memory-given-back-early",
        "Staging memory is used again while a message is sent out of it.",
        "transfer_run.cpp",
        "!block.written || block.missing != 0 || block.sending != 0) {",
        "!block.written || block.missing != 0) {",
    ),
    transfer(
        "abort-leaves-the-wire",
        "The other nodes are not told that an attempt was aborted here.",
        "transfer_run.cpp",
        "    wire_.reset();\n    fail_all({fmt::format(",
        "    fail_all({fmt::format(",
    ),
    transfer(
        "aborted-taken-for-lost",
        "An attempt that was aborted fails as if its connections had broken.",
        "transfer_run.cpp",
        "reduction.command.tag <= *aborted;",
        "reduction.command.tag < *aborted;",
    ),
    transfer(
        "counted-on-every-node",
        "A node counts the elements of results that another one made.",
        "node_plan.cpp",
        "block.owned && at < block.outputs.end; ++at) {",
        "at < block.outputs.end; ++at) {",
    ),
    transfer(
        "replicas-of-blocks-counted",
        "The norm counts every sum of a part.",
        "node_plan.cpp",
        "      if (piece.sum == 0) {",
        "      if (piece.sum < 9) {",
    ),
    Mutant(
        "copies-taken-again",
        "Where powers leave the doubles, copies that the norm does not count are summed with what it counts.",
        "transfer",
        "service/device/host/host_passes.cpp",
        "counted == sums.size() || !is_counted(index, part, counted)",
        "counted == sums.size() || (sums[counted].destinations.empty() && !is_counted(index, part, counted))",
    ),
    transfer(
        "absent-set-to-zero",
        "A tensor that no node used gets zeros for its gradient.",
        "node_outputs.cpp",
        "  if (!complete && std::ranges::binary_search(command_.absent, tensor)) {",
        "  if (!complete && command_.absent.size() > 999) {",
    ),
    transfer(
        "empty-sums-keep-their-old-values",
        "A sum that nobody contributed to keeps what its memory held before.",
        "node_outputs.cpp",
        "    return Change::Zeros;\n  }\n  const plan::ClipOutcome",
        "    return Change::None;\n  }\n  const plan::ClipOutcome",
    ),
    transfer(
        "part-left-out-of-the-norm",
        "A node does not say that the sum which counts has no gradient, where another on it has one.",
        "node_copies.cpp",
        "known_of(plan_, compared.part, 0) == SumKnown::Empty) {",
        "known_of(plan_, compared.part, 0) == SumKnown::Nothing) {",
    ),
    transfer(
        "hash-of-the-first-chunk",
        "The fingerprint of a result leaves out what is behind its first chunk.",
        "node_copies.cpp",
        "subspan(compared.held.begin, count));",
        "subspan(compared.held.begin, count > 1 ? 1 : count));",
    ),
    transfer(
        "unlike-copies-keep-the-hash",
        "A node whose own copies differ has the hash of one whose copies are equal.",
        "node_copies.cpp",
        "    return copies.empty || copies.unlike ? hash_of_unlike(hash, copies.rank) : hash;",
        "    return hash;",
    ),
    transfer(
        "hashes-of-the-step-before",
        "A step that does not compare says the hashes of an earlier one that did.",
        "node_outputs.cpp",
        "  plan.nodes()->attempt.compared[command.bucket] = command.compare;",
        "  plan.nodes()->attempt.compared[command.bucket] = command.compare || command.tag > 1;",
    ),
    transfer(
        "rows-without-rescaling",
        "A sum that is counted from its row is lost where its powers leave the doubles.",
        "node_copies.cpp",
        "    if (needs_rescaling(sum, p())) {",
        "    if (needs_rescaling(sum, p()) && chunks_.empty()) {",
    ),
    transfer(
        "staging-wraps-over-the-oldest",
        "A block gets memory that the oldest one still has.",
        "staging.cpp",
        "  return bytes <= oldest ? std::optional<std::uint64_t>(0) : std::nullopt;",
        "  return bytes <= size_bytes_ ? std::optional<std::uint64_t>(0) : std::nullopt;",
    ),
    transfer(
        "holes-in-transfers",
        "A transfer that leaves elements out is taken.",
        "transfer_check.cpp",
        "    fits(!gap && end == elements, [&] {",
        "    fits(!gap && end <= elements, [&] {",
    ),
    queue(
        "finish-does-not-wait",
        "A finish overtakes the reductions that are under way.",
        "    return plan && plans_.contains(*plan) &&",
        "    return plan && plans_.contains(*plan + 1) &&",
    ),
    queue(
        "memory-unmapped-under-a-reduction",
        "The memory of a rank is released while its gradients are being reduced.",
        "      return std::any_of(plans_.begin(), plans_.end(), [&](const auto& each) {",
        "      return plans_.empty() && std::any_of(plans_.begin(), plans_.end(), [&](const auto& each) {",
    ),
)
