#include "rpc/wire/wire_clip.hpp"

#include "plan/check/words.hpp"
#include "plan/limits.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace gradsync::rpc {

namespace {

enum class PolicyName : std::uint8_t { Fixed, Observe, Percentile, ZScore, Auto };

struct WirePolicy {
  PolicyName kind = PolicyName::Fixed;
  std::optional<double> percentile;
  std::optional<std::int64_t> window;
  std::optional<double> z;
  std::optional<double> alpha;
  std::optional<std::int64_t> warmup;
};

struct WireClip {
  std::string group;
  Settable<double> max_norm;
  plan::ClipOptions clip;  ///< all but max_norm
};

/// Notes an error where a field is given that the policy does not have.
bool check_absent(FieldReader& reader, const char* field, bool given, const plan::PolicyOptions& policy) {
  if (!given) {
    return true;
  }
  const FieldReader::Step step(reader, field);
  return reader.fail("does not belong to the kind \"" + std::string(plan::name_of(policy)) + "\"");
}

plan::PolicyOptions usual(PolicyName kind) {
  switch (kind) {
    case PolicyName::Fixed:
      return plan::FixedPolicy{};
    case PolicyName::Observe:
      return plan::ObservePolicy{};
    case PolicyName::Percentile:
      return plan::PercentilePolicy{};
    case PolicyName::ZScore:
      return plan::ZScorePolicy{};
    case PolicyName::Auto:
      return plan::AutoPolicy{};
  }
  return plan::FixedPolicy{};
}

}  // namespace

template <>
struct EnumNames<PolicyName> {
  static constexpr std::array<std::pair<const char*, PolicyName>, 5> kEntries{{
      {"fixed", PolicyName::Fixed},
      {"observe", PolicyName::Observe},
      {"percentile", PolicyName::Percentile},
      {"zscore", PolicyName::ZScore},
      {"auto", PolicyName::Auto},
  }};
};

template <>
struct Fields<WirePolicy> {
  static constexpr const char* kName = "ClipPolicy";

  static void visit(auto& v, auto& s) {
    v.required(
        "kind",
        s.kind,
        "how the threshold is found; fixed: it is max_norm; observe: nothing is clipped; auto: as percentile, but it "
        "remembers every norm, and 0 is a threshold"
    );
    v.optional("percentile", s.percentile, "for percentile and auto: of the last norms, in (0, 100]; absent: 95");
    v.optional("window", s.window, "for percentile and auto: how many norms; absent: 1000");
    v.optional("z", s.z, "for zscore: deviations above the mean, > 0; absent: 2.5");
    v.optional("alpha", s.alpha, "for zscore: weight of the past, in (0, 1); absent: 0.97");
    v.optional("warmup", s.warmup, "norms before it adapts; absent: 100 of percentile and auto, 25 of zscore");
  }
};

template <>
struct Fields<WireClip> {
  static constexpr const char* kName = "ClipGroup";

  static void visit(auto& v, auto& s) {
    v.required("group", s.group, "name of the clip group", kPlanNameLength);
    v.optional("max_norm", s.max_norm, "null or absent: measure only; of an adaptive policy: no ceiling", kNatural);
    v.optional("zero_rule", s.clip.zero_rule, "what max_norm 0 means");
    v.optional("policy", s.clip.policy, "how the threshold is found");
    v.optional("nonfinite", s.clip.nonfinite, "what a norm that is not finite does to the step");
    v.optional("spike", s.clip.spike, "what a norm far above the policy's own threshold does to the step");
    v.optional("spike_factor", s.clip.spike_factor, "how far is that: times the threshold, > 1");
    v.optional("watch", s.clip.watch, "policies that say what they would have done", kWatching);
  }

  static constexpr Bounds kWatching{0, static_cast<std::int64_t>(plan::kMaxWatchingPolicies)};
};

bool Codec<plan::PolicyOptions>::read(FieldReader& reader, Value value, plan::PolicyOptions& out, Bounds) {
  WirePolicy wire;
  if (!Codec<WirePolicy>::read(reader, value, wire, {})) {
    return false;
  }
  out = usual(wire.kind);
  plan::PercentilePolicy* percentile = plan::percentile_in(out);
  auto* zscore = std::get_if<plan::ZScorePolicy>(&out);
  const bool adapts = percentile != nullptr || zscore != nullptr;
  if (!check_absent(reader, "percentile", wire.percentile && percentile == nullptr, out) ||
      !check_absent(reader, "window", wire.window && percentile == nullptr, out) ||
      !check_absent(reader, "z", wire.z && zscore == nullptr, out) ||
      !check_absent(reader, "alpha", wire.alpha && zscore == nullptr, out) ||
      !check_absent(reader, "warmup", wire.warmup && !adapts, out)) {
    return false;
  }
  if (percentile != nullptr) {
    percentile->percentile = wire.percentile.value_or(percentile->percentile);
    percentile->window = wire.window.value_or(percentile->window);
    percentile->warmup = wire.warmup.value_or(percentile->warmup);
  } else if (zscore != nullptr) {
    zscore->z = wire.z.value_or(zscore->z);
    zscore->alpha = wire.alpha.value_or(zscore->alpha);
    zscore->warmup = wire.warmup.value_or(zscore->warmup);
  }
  return true;
}

void Codec<plan::PolicyOptions>::write(JsonWriter& writer, const plan::PolicyOptions& policy) {
  WirePolicy wire;
  if (const plan::PercentilePolicy* percentile = plan::percentile_in(policy)) {
    wire.kind = std::holds_alternative<plan::AutoPolicy>(policy) ? PolicyName::Auto : PolicyName::Percentile;
    wire.percentile = percentile->percentile;
    wire.window = percentile->window;
    wire.warmup = percentile->warmup;
  } else if (const auto* zscore = std::get_if<plan::ZScorePolicy>(&policy)) {
    wire.kind = PolicyName::ZScore;
    wire.z = zscore->z;
    wire.alpha = zscore->alpha;
    wire.warmup = zscore->warmup;
  } else if (std::holds_alternative<plan::ObservePolicy>(policy)) {
    wire.kind = PolicyName::Observe;
  }
  Codec<WirePolicy>::write(writer, wire);
}

Json Codec<plan::PolicyOptions>::schema(SchemaBuilder& builder, Bounds) {
  return Codec<WirePolicy>::schema(builder, {});
}

bool Codec<plan::ClipGroupOptions>::read(FieldReader& reader, Value value, plan::ClipGroupOptions& out, Bounds) {
  WireClip wire;
  if (!Codec<WireClip>::read(reader, value, wire, {})) {
    return false;
  }
  out.group = std::move(wire.group);
  out.clip = std::move(wire.clip);
  out.clip.max_norm = wire.max_norm.value;
  return true;
}

void Codec<plan::ClipGroupOptions>::write(JsonWriter& writer, const plan::ClipGroupOptions& options) {
  Codec<WireClip>::write(writer, WireClip{options.group, {true, options.clip.max_norm}, options.clip});
}

Json Codec<plan::ClipGroupOptions>::schema(SchemaBuilder& builder, Bounds) {
  return Codec<WireClip>::schema(builder, {});
}

}  // namespace gradsync::rpc
