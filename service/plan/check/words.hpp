#pragma once
// Declared values in the words of the wire, for messages that people compare.

#include "plan/declaration.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gradsync::plan {

[[nodiscard]] std::string_view name_of(ReduceOp op);       ///< "sum", "mean"
[[nodiscard]] std::string_view name_of(ClipMode mode);     ///< "strict", "torch"
[[nodiscard]] std::string_view name_of(DataPath path);     ///< "arena", "stats"
[[nodiscard]] std::string_view name_of(BucketRule rule);   ///< "default", "torch"
[[nodiscard]] std::string_view name_of(ZeroRule rule);     ///< "refuse", "off", "zero"
[[nodiscard]] std::string_view name_of(PartialSums sums);  ///< "exact", "bfloat16"

[[nodiscard]] std::string_view name_of(NonfiniteAction action);  ///< "propagate", "skip", "zero", "raise"
[[nodiscard]] std::string_view name_of(SpikeAction action);      ///< "clip", "skip", "raise"

/// "fixed", "observe", "percentile", "zscore", "auto"
[[nodiscard]] std::string_view name_of(const PolicyOptions& policy);

[[nodiscard]] std::string words_of(std::span<const std::int64_t> numbers);   ///< "[2, 3]"
[[nodiscard]] std::string words_of(std::span<const std::string> names);      ///< "[dp, tp]"
[[nodiscard]] std::string words_of(const std::optional<double>& number);     ///< "none", "0.5"
[[nodiscard]] std::string words_of(const std::optional<std::string>& name);  ///< "none", "'head'"
[[nodiscard]] std::string words_of(const PlacementKind& kind);               ///< "partial(mean) → shard(0)"
[[nodiscard]] std::string words_of(std::span<const Placement> placements);   ///< "dp: replicate, tp: shard(0)"
[[nodiscard]] std::string words_of(const Placement& placement);              ///< "dp: partial(mean) → replicate"
[[nodiscard]] std::string words_of(const PolicyOptions& policy);  ///< "percentile 95, window 1000, warmup 100"

/// "max_norm 1, zero_rule refuse", and what else is not as it is by default.
[[nodiscard]] std::string words_of(const ClipOptions& clip);

}  // namespace gradsync::plan
