"""Faults in sums, findings and the reading of rows."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["NORM"]


def norm(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "norm", f"service/device/{file}", old, new)


NORM = (
    norm(
        "replicas-counted",
        "Every copy is added: dp_replicate and every other replicating axis count double.",
        "step/stats_finish.cpp",
        "      divergent_.push_back(place.rank);\n    }\n    spoil(row);",
        "      divergent_.push_back(place.rank);\n    }\n    count(row, place.elements);",
    ),
    norm(
        "last-shard-dropped",
        "The last holder of every tensor is not read.",
        "step/stats_finish.cpp",
        "for (std::size_t i = begin; i < end; ++i) {",
        "for (std::size_t i = begin; i + 1 < end; ++i) {",
    ),
    norm(
        "nan-by-maximum",
        "A NaN goes the way of a maximum, where comparisons lose it.",
        "math/norm_sum.cpp",
        "  if (nan_ != 0) {",
        "  if (nan_ != 0 && maximum_ < 0) {",
    ),
    norm(
        "nan-of-a-replica-lost",
        "What is not finite on a copy that is not counted leaves the norm finite.",
        "step/stats_finish.cpp",
        "    if (row.nonfinite != 0) {\n      TensorSum sum;",
        "    if (row.nonfinite > ~std::uint64_t{1}) {\n      TensorSum sum;",
    ),
    norm(
        "float32-accumulation",
        "Sums of tensors are kept in float32.",
        "math/norm_sum.hpp",
        "      sum_ = sum_ + tensor.power_sum;",
        "      sum_ = {static_cast<float>((sum_ + tensor.power_sum).high), 0};",
    ),
    norm(
        "low-part-dropped",
        "The low half of a row's sum is left out.",
        "stats/stats_row.hpp",
        "return {{row.power_sum, row.power_sum_low}, row.scale,",
        "return {{row.power_sum, 0}, row.scale,",
    ),
    norm(
        "scale-of-rows-ignored",
        "A rescaled sum is added as if it were a plain one.",
        "math/norm_sum.cpp",
        "    sum_ = sum_ + tensor.power_sum * power_of_ratio(tensor.scale, scale_, p_);",
        "    sum_ = sum_ + tensor.power_sum;",
    ),
    norm(
        "infinity-norm-forgets",
        "Of the infinity norm only the last tensor's maximum is kept.",
        "math/norm_sum.cpp",
        "  maximum_ = std::max(maximum_, tensor.maximum);",
        "  maximum_ = tensor.maximum;",
    ),
    norm(
        "divergence-unseen",
        "Copies that differ are not reported.",
        "step/stats_finish.cpp",
        "    if (!agree(first_, row, layout_.norm_type)) {",
        "    if (!agree(first_, first_, layout_.norm_type)) {",
    ),
    norm(
        "fingerprints-ignored",
        "Copies are compared by their sums even where both have fingerprints.",
        "stats/stats_row.cpp",
        "  if (a.fingerprint != 0 && b.fingerprint != 0) {",
        "  if (a.fingerprint != 0 && b.fingerprint == 0) {",
    ),
    norm(
        "missing-unseen",
        "A gradient that some holders lack is not reported.",
        "step/stats_finish.cpp",
        "      missing_.push_back(place.rank);",
        "      elements_ = true;",
    ),
    norm(
        "old-rows-believed",
        "A row of another attempt passes.",
        "stats/stats_row.cpp",
        "  if (row.stamp != stamp) {",
        "  if (row.stamp > stamp + (std::uint64_t{1} << 62)) {",
    ),
    norm(
        "old-rows-plainly-right",
        "The quick check of rows does not look at the attempt.",
        "stats/stats_row.hpp",
        "  if (row.stamp != stamp || row.nonfinite != 0",
        "  if ((row.stamp != stamp && row.stamp == 0) || row.nonfinite != 0",
    ),
    norm(
        "empty-shards-reported",
        "Rows of empty boxes are compared and counted like the others.",
        "step/stats_finish.cpp",
        "      if (place.elements != 0) {",
        "      if (place.elements + 1 != 0) {",
    ),
    norm(
        "nonfinite-by-copies",
        "Values that are not finite are counted once per copy.",
        "step/stats_finish.cpp",
        "nonfinite_of_box_ = std::max(nonfinite_of_box_, row.nonfinite);",
        "nonfinite_of_box_ += row.nonfinite;",
    ),
    norm(
        "layer-0-left-out",
        "The first layer has no norm of its own.",
        "math/norm_totals.hpp",
        "    if (layer >= 0) {",
        "    if (layer > 0) {",
    ),
    norm(
        "groups-share-a-norm",
        "Every clip group is clipped by the norm of the whole.",
        "math/norm_totals.cpp",
        "(groups_.empty() ? total_ : groups_[group]).norm()",
        "(groups_.empty() || group > 0 ? total_ : groups_[group]).norm()",
    ),
    Mutant(
        "tied-counted-twice",
        "Every tensor is in the norm set, tied copies too.",
        "norm",
        "service/engine/plan/lane_plan.cpp",
        "    entry.counted = false;",
        "    entry.counted = true;",
    ),
    norm(
        "tied-copies-not-compared",
        "Tied copies are compared with each other alone, not with what is counted for them.",
        "step/stats_finish.cpp",
        "        if (!tensor_->counted) {\n          first_ = counted_row(i);",
        "        if (!tensor_->counted && tensor_->counted) {\n          first_ = counted_row(i);",
    ),
    norm(
        "layers-keep-the-scale",
        "The norms of layers are not divided by the loss scale.",
        "math/norm_totals.cpp",
        "    math.layer_norms.push_back(layer.norm() / scale);",
        "    math.layer_norms.push_back(layer.norm());",
    ),
    norm(
        "copies-nearly-alike",
        "Copies may differ in the third digit.",
        "stats/stats_row.cpp",
        "constexpr double kOrder = 1e-12;",
        "constexpr double kOrder = 1e-3;",
    ),
)
