"""Faults in what is counted, where it is summed, and what is multiplied."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["PLAN"]


def plan(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "plan", f"service/plan/{file}", old, new)


def arithmetic(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "plan", f"arithmetic/{file}", old, new)


PLAN = (
    plan(
        "tied-to-itself",
        "A tied copy stands for itself: counted twice.",
        "merge/merge_declarations.cpp",
        "      merged.counted_as = first->second;",
        "      merged.counted_as = i;",
    ),
    plan(
        "ep-forgotten",
        "The sum over expert axes is left out of the program.",
        "layout/norm_program.cpp",
        "      if (!names.empty()) {",
        "      if (!names.empty() && *level != Level::Experts) {",
    ),
    plan(
        "pp-forgotten",
        "The sum over pipeline stages is left out of the program.",
        "layout/norm_program.cpp",
        "      if (!names.empty()) {",
        "      if (!names.empty() && *level != Level::Stages) {",
    ),
    plan(
        "ep-summed-twice",
        "Sums of experts travel over the expert axes two times.",
        "layout/norm_program.cpp",
        "        next = sum_of(collective_of(*level, mesh, names), next);",
        "        next = sum_of(collective_of(*level, mesh, names), next);\n"
        "        next = *level == Level::Experts ? sum_of(collective_of(*level, mesh, names), next) : next;",
    ),
    plan(
        "replicas-summed",
        "Sums run over axes that replicate a tensor as well.",
        "merge/placed_ranks.cpp",
        "cutting->scatters, position}\n      );\n    }",
        "cutting->scatters, position}\n      );\n"
        "    } else {\n      note_axes(resolved, mesh, placed.roles.sharding);\n    }",
    ),
    plan(
        "experts-with-shards",
        "Expert axes are summed together with the other shards.",
        "layout/norm_program.cpp",
        "  return is_expert_axis(axis.name) ? Level::Experts : Level::Shards;",
        '  return is_expert_axis(axis.name) && axis.name == "none" ? Level::Experts : Level::Shards;',
    ),
    plan(
        "only-not-normalised",
        "`only` at every coordinate of an axis counts as a placement in particular.",
        "merge/placed_ranks.cpp",
        "  return static_cast<std::int64_t>(only.at.size()) == along.size;",
        "  return static_cast<std::int64_t>(only.at.size()) > along.size;",
    ),
    plan(
        "stages-by-name-alone",
        "Tensors of two stages with one name are taken for one.",
        "merge/merge_declarations.cpp",
        '    return only.empty() ? tensor.name : fmt::format("{}\\n{}", tensor.name, only);',
        '    return only.size() < 999 ? tensor.name : fmt::format("{}\\n{}", tensor.name, only);',
    ),
    plan(
        "floor-of-uneven-shards",
        "Uneven shards are cut by rounding down: the rest belongs to nobody.",
        "merge/placed_ranks.cpp",
        "extent / cut.count + (extent % cut.count != 0 ? 1 : 0);",
        "extent / cut.count;",
    ),
    plan(
        "split-order-ignored",
        "Nested splits are cut in the order of the mesh, whatever was declared.",
        "merge/placed_ranks.cpp",
        "  if (tensor.split_order.empty()) {",
        "  if (tensor.split_order.size() < 99) {",
    ),
    plan(
        "overlaps-accepted",
        "Shards that overlap are not refused.",
        "check/check_tiling.cpp",
        "      if (overlap(boxes[i]->box, boxes[k]->box)) {",
        "      if (i == k && overlap(boxes[i]->box, boxes[k]->box)) {",
    ),
    plan(
        "gaps-accepted",
        "Shards that leave a gap are not refused.",
        "check/check_tiling.cpp",
        "  if (covered != whole) {",
        "  if (covered > whole) {",
    ),
    plan(
        "replicas-of-two-sizes",
        "Ranks that replicate a tensor may hold different parts of it.",
        "check/check_tiling.cpp",
        "    } else if (first->box != held.box &&",
        "    } else if (first->rank == held.rank && first->box != held.box &&",
    ),
    plan(
        "holders-not-counted",
        "A rank that leaves a tensor out is not noticed.",
        "merge/merge_declarations.cpp",
        "      if (static_cast<std::int64_t>(merged.holdings.size()) != placed.holders) {",
        "      if (static_cast<std::int64_t>(merged.holdings.size()) > placed.holders) {",
    ),
    plan(
        "partial-accepted",
        "A gradient that nobody reduced is taken as reduced.",
        "check/check_placements.cpp",
        "    if (std::holds_alternative<Partial>(placement.kind)) {\n      return at.unsupported(",
        "    if (std::holds_alternative<Partial>(placement.kind) && placement.axes.empty()) {\n"
        "      return at.unsupported(",
    ),
    plan(
        "clip-groups-not-compared",
        "Holders may put a tensor into different clip groups, and get different coefficients.",
        "merge/tensor_difference.cpp",
        '      differs(found, "clip_group", first.clip_group, other.clip_group) ||\n',
        "",
    ),
    plan(
        "missing-axis-accepted",
        "An axis without a placement is taken as replicating.",
        "check/check_placements.cpp",
        "    if (mesh.axes[a].size > 1 && !placed[a]) {",
        "    if (mesh.axes[a].size > 99 && !placed[a]) {",
    ),
    arithmetic(
        "epsilon-forgotten",
        "torch's 1e-6 is left out of the coefficient.",
        "clip.hpp",
        "  const T shifted = norm + static_cast<T>(1e-6);",
        "  const T shifted = norm;",
    ),
    arithmetic(
        "coefficient-above-one",
        "In torch mode gradients within the threshold are blown up to it.",
        "clip.hpp",
        "  return coefficient > T{1} ? 1.0 : static_cast<double>(coefficient);",
        "  return static_cast<double>(coefficient);",
    ),
    arithmetic(
        "coefficient-rounded-up",
        "In strict mode the clipped norm may be above the threshold.",
        "clip.hpp",
        "  while (factor > 0 && factor * norm > max_norm) {",
        "  while (factor > 1 && factor * norm > max_norm) {",
    ),
    arithmetic(
        "scale-divided-twice",
        "The loss scale divides twice.",
        "clip.hpp",
        "  const double multiplier = found.coefficient / scale;",
        "  const double multiplier = found.coefficient / scale / scale;",
    ),
    arithmetic(
        "torch-clips-by-float-max",
        "In torch mode a norm above float32 is clipped by as if it were the largest float.",
        "clip.hpp",
        "  const bool as_torch = limit.mode == ClipMode::Torch && held;",
        "  const bool as_torch = limit.mode == ClipMode::Torch && !beyond;",
    ),
    plan(
        "a-skipped-step-is-not-clipped",
        "A norm above the threshold is not said to be where the step is skipped.",
        "clip/clip_rule.cpp",
        "  outcome.multiply = false;\n",
        "  outcome.multiply = false;\n  outcome.clipped = false;\n",
    ),
    plan(
        "float64-clipped-as-float32",
        "A clip group with float64 gradients has a float32 norm.",
        "clip/clip_groups.cpp",
        "      group.norm_dtype = DType::Float64;",
        "      group.norm_dtype = DType::Float32;",
    ),
    plan(
        "flattened-axes-reversed",
        "Of several axes taken as one the last named is the slowest.",
        "merge/placed_ranks.cpp",
        "    for (const std::size_t axis : axes) {\n      flat = flat * mesh.axes[axis].size + at[axis];\n    }",
        "    for (std::size_t i = axes.size(); i-- > 0;) {\n"
        "      flat = flat * mesh.axes[axes[i]].size + at[axes[i]];\n    }",
    ),
    plan(
        "expert-shard-axes-are-plain",
        "Axes named ep_… are not expert axes.",
        "layout/norm_program.cpp",
        'return name == "ep" || name.starts_with("ep_");',
        'return name == "ep";',
    ),
    plan(
        "layers-left-at-home",
        "Scalar sums have no room for the layers' norms.",
        "layout/norm_program.cpp",
        "plan_.clip_groups.size() + layers.size()",
        "plan_.clip_groups.size()",
    ),
    plan(
        "result-sent-to-every-source",
        "Nodes that bring a partial sum get the result, also where no rank of theirs is to have it.",
        "transfer/node_transfer.cpp",
        "    for (const TransferNode destination : stream.destinations) {",
        "    for (const TransferNode destination : stream.sources) {",
    ),
    plan(
        "one-node-owns-all",
        "One node adds up all that travels, and sends more than its share.",
        "transfer/bucket_transfer.cpp",
        "  const std::uint64_t owners = stream.destinations.size();",
        "  const std::uint64_t owners = 1;",
    ),
    plan(
        "tail-never-travels",
        "Elements behind the last whole unit of a stream are in no block.",
        "transfer/bucket_transfer.cpp",
        "(stream.elements + kTransferUnit - 1) / kTransferUnit;",
        "stream.elements / kTransferUnit;",
    ),
    plan(
        "own-partial-sum-has-no-room",
        "An owner has no staging memory for its own partial sum.",
        "transfer/node_transfer.cpp",
        "    return own + (stream.sources.size() - 1) * partial",
        "    return (stream.sources.size() - 1) * partial",
    ),
    plan(
        "streams-by-sources-alone",
        "Sums that go to different nodes are owned, and sent, as if they went to the same.",
        "transfer/bucket_transfer.cpp",
        "of_nodes_.try_emplace({stream.sources, stream.destinations}, number);",
        "of_nodes_.try_emplace({stream.sources, stream.sources}, number);",
    ),
    plan(
        "payloads-share-numbers",
        "Partial sums and results of a link are numbered together.",
        "transfer/node_transfer.cpp",
        "next_[{peer, payload}]++",
        "next_[{peer, Payload::Partial}]++",
    ),
    plan(
        "staging-not-shared",
        "A block may fill the staging memory of its owner.",
        "transfer/bucket_transfer.cpp",
        "options.staging_bytes / kBlocksInStaging / staged",
        "options.staging_bytes / staged",
    ),
    plan(
        "partial-sums-are-not-in-the-digest",
        "Ranks whose partial sums travel in different formats have one plan.",
        "canonical_text.cpp",
        "    if (options.partial_sums != PartialSums::Exact) {",
        "    if (options.partial_sums != PartialSums::Exact && options.accumulate < 1) {",
    ),
    plan(
        "partial-sums-differ",
        "Ranks may declare different formats of partial sums.",
        "merge/tensor_difference.cpp",
        'differs(found, "partial_sums", first.partial_sums, other.partial_sums)) {',
        'differs(found, "partial_sums", first.partial_sums, first.partial_sums)) {',
    ),
)
