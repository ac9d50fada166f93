#include "plan/words.hpp"

#include "base/assert.hpp"

#include <fmt/format.h>

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

std::string words_of(std::span<const std::int64_t> numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); }

std::string words_of(std::span<const std::string> names) { return fmt::format("[{}]", fmt::join(names, ", ")); }

std::string words_of(const std::optional<double>& number) { return number ? fmt::format("{}", *number) : "none"; }

std::string words_of(const std::optional<std::string>& name) { return name ? fmt::format("'{}'", *name) : "none"; }

std::string words_of(const PlacementKind& kind) { return std::visit(KindWords{}, kind); }

std::string words_of(const Placement& placement) {
  return fmt::format("{}: {}", fmt::join(placement.axes, "+"), words_of(placement.kind));
}

std::string words_of(const ClipOptions& clip) {
  return fmt::format("max_norm {}, zero_rule {}", words_of(clip.max_norm), name_of(clip.zero_rule));
}

}  // namespace gradsync::plan
