"""Faults in what is summed with what, divided, cut and handed out, where gradsync reduces."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["SYNC"]


def sync(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "sync", f"service/{file}", old, new)


SYNC = (
    sync(
        "mean-for-sum",
        "Every stage divides by its ranks.",
        "plan/layout/reduction.cpp",
        "    divisor *= stage.op == ReduceOp::Mean ? stage.size : 1;",
        "    divisor *= stage.size;",
    ),
    sync(
        "first-mean-alone",
        "Of two means only one divides.",
        "plan/layout/reduction.cpp",
        "    divisor *= stage.op == ReduceOp::Mean ? stage.size : 1;",
        "    divisor = stage.op == ReduceOp::Mean ? stage.size : divisor;",
    ),
    sync(
        "divisor-needs-a-stage",
        "What is not summed is not divided: an expert on a group of one.",
        "plan/layout/reduction.cpp",
        "  if (tensor.divisor) {\n    return *tensor.divisor;",
        "  if (tensor.divisor && !stages_of(tensor, mesh).empty()) {\n    return *tensor.divisor;",
    ),
    sync(
        "divided-by-contributors",
        "A mean over ranks some of which got no gradient is divided by the others.",
        "device/host/bucket_reduction.cpp",
        "    work.divisor = bucket_.divisor;",
        "    work.divisor = bucket_.divisor == 1 ? 1 : static_cast<double>(pointers.sources.size());",
    ),
    sync(
        "stages-out-of-order",
        "What sync scatters is nested in the order of the mesh, not of its stages.",
        "plan/merge/placed_ranks.cpp",
        "    return sync_position(placement, mesh);",
        "    return resolved.axes.front();",
    ),
    sync(
        "scattered-before-sharded",
        "Sync cuts before what was sharded all along.",
        "plan/merge/placed_ranks.cpp",
        "    return std::tie(a.scatters, a.position) < std::tie(b.scatters, b.position);",
        "    return std::tie(b.scatters, a.position) < std::tie(a.scatters, b.position);",
    ),
    sync(
        "rounded-down",
        "Parts of an extent that does not divide are rounded down: the tail is lost.",
        "plan/merge/placed_ranks.cpp",
        "    const std::int64_t part = extent / cut.count + (extent % cut.count != 0 ? 1 : 0);",
        "    const std::int64_t part = extent / cut.count;",
    ),
    sync(
        "empty-shard-skipped",
        "A rank whose part is empty is left out of the sum.",
        "plan/layout/rank_sums.cpp",
        "    if (placed.ranks[rank].holds) {\n      found[",
        "    if (placed.ranks[rank].holds && (placed.boxes == 1 || placed.ranks[rank].box + 1 < placed.boxes)) {\n"
        "      found[",
    ),
    sync(
        "holder-left-out",
        "The last rank of a group is not summed.",
        "plan/layout/rank_sums.cpp",
        "      for (const Contribution& contribution : group) {\n        sum.sources.push_back(contribution.member);",
        "      for (const Contribution& contribution : group) {\n"
        "        if (sum.sources.size() > 1) {\n          break;\n        }\n"
        "        sum.sources.push_back(contribution.member);",
    ),
    sync(
        "one-destination",
        "Of the ranks that share a part only the first gets it.",
        "plan/layout/rank_sums.cpp",
        "      of_box[contribution.box].destinations.push_back(contribution.member);",
        "      if (of_box[contribution.box].destinations.empty()) {\n"
        "        of_box[contribution.box].destinations.push_back(contribution.member);\n      }",
    ),
    sync(
        "inner-offset-lost",
        "A part begins where its outermost dim does.",
        "plan/layout/rank_sums.cpp",
        "    lies.first += static_cast<std::uint64_t>(part.offset[d] - whole.offset[d]) * distance;",
        "    lies.first = static_cast<std::uint64_t>(part.offset[d] - whole.offset[d]) * distance;",
    ),
    sync(
        "copies-not-summed",
        "Tied copies on two stages are reduced each by itself.",
        "plan/layout/rank_sums.cpp",
        "      join(declaration->placements[k].axes);\n",
        "      (void)k;\n",
    ),
    sync(
        "stages-share-a-bucket",
        "A bucket is keyed without the ranks that hold it.",
        "plan/layout/plan_buckets.cpp",
        "    return std::tuple(dtype, mesh, groups, kinds,",
        "    return std::tuple(dtype, mesh, std::vector<std::vector<std::int64_t>>{}, kinds,",
    ),
    sync(
        "torch-one-small-bucket",
        "Bucket rule torch begins with a small bucket once, not once for each dtype.",
        "plan/layout/bucket_assignment.cpp",
        "OpenBucket{{}, 0, sizes.first_bytes})",
        "OpenBucket{{}, 0, open.empty() ? sizes.first_bytes : sizes.bytes})",
    ),
    sync(
        "torch-buckets-closed-late",
        "Bucket rule torch closes a bucket above its limit, not at it.",
        "plan/layout/bucket_assignment.cpp",
        "    if (bucket.size_bytes >= bucket.limit_bytes) {\n      buckets.push_back(std::move(bucket.items));\n"
        "      bucket = {{}, 0, sizes.bytes};",
        "    if (bucket.size_bytes > bucket.limit_bytes) {\n      buckets.push_back(std::move(bucket.items));\n"
        "      bucket = {{}, 0, sizes.bytes};",
    ),
    sync(
        "torch-rule-unheard",
        "The option is read and the default rule is used.",
        "plan/layout/plan_buckets.cpp",
        "  const bool torch = plan.options.buckets == BucketRule::Torch;",
        "  const bool torch = false;",
    ),
    sync(
        "everyone-is-waited-for",
        "A bucket waits for ranks that hold nothing of it.",
        "engine/step/step_machine.cpp",
        "    if (holder && !ranks_[seat].ready[bucket] && !ranks_[seat].ask) {",
        "    if (!ranks_[seat].ready[bucket] && !ranks_[seat].ask) {",
    ),
    sync(
        "rows-taken-for-tensors",
        "What a rank calls unused is looked up in the plan's numbers.",
        "engine/step/step_machine_ready.cpp",
        "    const std::uint32_t tensor = rows_of(seat(rank_number))[row];",
        "    const std::uint32_t tensor = row;",
    ),
    sync(
        "old-bytes",
        "An output to which nobody contributed keeps the gradient of an earlier step.",
        "device/host/bucket_reduction.cpp",
        "        write_zeros(chunk, pointers);\n",
        "",
    ),
    sync(
        "replica-nan-lost",
        "A NaN that a replica alone has is not in the norm.",
        "device/host/bucket_reduction.cpp",
        "add_nonfinite(stats, plan_.attempt().chunk_stats[index])",
        "void()",
    ),
    sync(
        "first-vector-of-a-row-streamed",
        "Copies that are written past the cache repeat the first vector of a row.",
        "device/vector/row_formats-inl.hpp",
        "hn::Stream(raw[k],",
        "hn::Stream(raw[0],",
    ),
    sync(
        "streamed-to-any-place",
        "Copies are written past the cache to places that are not aligned.",
        "device/vector/scale_chunk.cpp",
        "% kStreamAlignment == 0;",
        "% 1 == 0;",
    ),
)
