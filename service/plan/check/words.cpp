#include "plan/check/words.hpp"

#include "base/assert.hpp"

#include <fmt/format.h>

#include <iterator>
#include <variant>

namespace gradsync::plan {

namespace {

struct KindWords {
  std::string operator()(const Replicate&) const { return "replicate"; }

  std::string operator()(const Shard& shard) const { return fmt::format("shard({})", shard.dim); }

  std::string operator()(const Only& only) const { return fmt::format("only({})", fmt::join(only.at, ", ")); }

  std::string operator()(const Partial& partial) const {
    const std::string after = partial.to_shard ? (*this)(*partial.to_shard) : (*this)(Replicate{});
    return fmt::format("partial({}) → {}", name_of(partial.op), after);
  }
};

}  // namespace

std::string_view name_of(ReduceOp op) { return op == ReduceOp::Sum ? "sum" : "mean"; }

std::string_view name_of(DataPath path) { return path == DataPath::Arena ? "arena" : "stats"; }

std::string_view name_of(BucketRule rule) { return rule == BucketRule::Default ? "default" : "torch"; }

std::string_view name_of(PartialSums sums) { return sums == PartialSums::Exact ? "exact" : "bfloat16"; }

std::string_view name_of(ClipMode mode) { return mode == ClipMode::Strict ? "strict" : "torch"; }

std::string_view name_of(ZeroRule rule) {
  switch (rule) {
    case ZeroRule::Refuse:
      return "refuse";
    case ZeroRule::Off:
      return "off";
    case ZeroRule::Zero:
      return "zero";
  }
  GRADSYNC_ASSERT(false, "every ZeroRule has a name");
}

std::string_view name_of(NonfiniteAction action) {
  switch (action) {
    case NonfiniteAction::Propagate:
      return "propagate";
    case NonfiniteAction::Skip:
      return "skip";
    case NonfiniteAction::Zero:
      return "zero";
    case NonfiniteAction::Raise:
      return "raise";
  }
  GRADSYNC_ASSERT(false, "every NonfiniteAction has a name");
}

std::string_view name_of(SpikeAction action) {
  switch (action) {
    case SpikeAction::Clip:
      return "clip";
    case SpikeAction::Skip:
      return "skip";
    case SpikeAction::Raise:
      return "raise";
  }
  GRADSYNC_ASSERT(false, "every SpikeAction has a name");
}

std::string_view name_of(const PolicyOptions& policy) {
  constexpr std::string_view kNames[] = {"fixed", "observe", "percentile", "zscore", "auto"};
  static_assert(std::size(kNames) == std::variant_size_v<PolicyOptions>);
  return kNames[policy.index()];
}

std::string words_of(std::span<const std::int64_t> numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); }

std::string words_of(std::span<const std::string> names) { return fmt::format("[{}]", fmt::join(names, ", ")); }

std::string words_of(const std::optional<double>& number) { return number ? fmt::format("{}", *number) : "none"; }

std::string words_of(const std::optional<std::string>& name) { return name ? fmt::format("'{}'", *name) : "none"; }

std::string words_of(const PlacementKind& kind) { return std::visit(KindWords{}, kind); }

std::string words_of(const Placement& placement) {
  return fmt::format("{}: {}", fmt::join(placement.axes, "+"), words_of(placement.kind));
}

std::string words_of(std::span<const Placement> placements) {
  std::vector<std::string> words;
  for (const Placement& placement : placements) {
    words.push_back(words_of(placement));
  }
  return words.empty() ? "no placement" : fmt::format("{}", fmt::join(words, ", "));
}

std::string words_of(const PolicyOptions& policy) {
  if (const PercentilePolicy* percentile = percentile_in(policy)) {
    return fmt::format(
        "{} {}, window {}, warmup {}", name_of(policy), percentile->percentile, percentile->window, percentile->warmup
    );
  }
  if (const auto* zscore = std::get_if<ZScorePolicy>(&policy)) {
    return fmt::format("zscore {}, alpha {}, warmup {}", zscore->z, zscore->alpha, zscore->warmup);
  }
  return std::string(name_of(policy));
}

std::string words_of(const ClipOptions& clip) {
  const ClipOptions usual;
  std::string words = fmt::format("max_norm {}, zero_rule {}", words_of(clip.max_norm), name_of(clip.zero_rule));
  if (clip.policy != usual.policy) {
    words += ", policy " + words_of(clip.policy);
  }
  if (clip.nonfinite != usual.nonfinite) {
    words += fmt::format(", nonfinite {}", name_of(clip.nonfinite));
  }
  if (clip.spike != usual.spike || clip.spike_factor != usual.spike_factor) {
    words += fmt::format(", spike {} above {}", name_of(clip.spike), clip.spike_factor);
  }
  for (const PolicyOptions& policy : clip.watch) {
    words += ", watched by " + words_of(policy);
  }
  return words;
}

}  // namespace gradsync::plan
