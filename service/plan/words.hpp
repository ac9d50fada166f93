#pragma once
// Declared values in the words of the wire, for messages that people compare.

#include "plan/declaration.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gradsync::plan {

[[nodiscard]] std::string_view name_of(ReduceOp op);      ///< "sum", "mean"
[[nodiscard]] std::string_view name_of(ClipMode mode);    ///< "strict", "torch"
[[nodiscard]] std::string_view name_of(DataPath path);    ///< "arena", "stats"
[[nodiscard]] std::string_view name_of(BucketRule rule);  ///< "default", "torch"
[[nodiscard]] std::string_view name_of(ZeroRule rule);    ///< "refuse", "off", "zero"

[[nodiscard]] std::string words_of(std::span<const std::int64_t> numbers);   ///< "[2, 3]"
[[nodiscard]] std::string words_of(std::span<const std::string> names);      ///< "[dp, tp]"
[[nodiscard]] std::string words_of(const std::optional<double>& number);     ///< "none", "0.5"
[[nodiscard]] std::string words_of(const std::optional<std::string>& name);  ///< "none", "'head'"
[[nodiscard]] std::string words_of(const PlacementKind& kind);               ///< "partial(mean) → shard(0)"
[[nodiscard]] std::string words_of(const Placement& placement);              ///< "dp: partial(mean) → replicate"
[[nodiscard]] std::string words_of(const ClipOptions& clip);                 ///< "max_norm 1, zero_rule refuse"

}  // namespace gradsync::plan
