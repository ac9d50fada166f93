#pragma once
// The clipping of a clip group on the wire: max_norm, policies, and the step's action when its norm is not to be
// trusted. The planner checks which values a policy may have.

#include "plan/declaration.hpp"
#include "rpc/json/codec.hpp"

namespace gradsync::rpc {

template <>
struct EnumNames<plan::ZeroRule> {
  static constexpr std::array<std::pair<const char*, plan::ZeroRule>, 3> kEntries{{
      {"refuse", plan::ZeroRule::Refuse},
      {"off", plan::ZeroRule::Off},
      {"zero", plan::ZeroRule::Zero},
  }};
};

template <>
struct EnumNames<plan::NonfiniteAction> {
  static constexpr std::array<std::pair<const char*, plan::NonfiniteAction>, 4> kEntries{{
      {"propagate", plan::NonfiniteAction::Propagate},
      {"skip", plan::NonfiniteAction::Skip},
      {"zero", plan::NonfiniteAction::Zero},
      {"raise", plan::NonfiniteAction::Raise},
  }};
};

template <>
struct EnumNames<plan::SpikeAction> {
  static constexpr std::array<std::pair<const char*, plan::SpikeAction>, 3> kEntries{{
      {"clip", plan::SpikeAction::Clip},
      {"skip", plan::SpikeAction::Skip},
      {"raise", plan::SpikeAction::Raise},
  }};
};

/// The wire's policy is flat: a field of another kind is refused, one of its own that is absent has its default.
template <>
struct Codec<plan::PolicyOptions> {
  static bool read(FieldReader& reader, Value value, plan::PolicyOptions& out, Bounds);
  static void write(JsonWriter& writer, const plan::PolicyOptions& policy);
  static Json schema(SchemaBuilder& builder, Bounds);
};

/// `max_norm`: a number, or null (or absent) to measure only.
template <>
struct Codec<plan::ClipGroupOptions> {
  static bool read(FieldReader& reader, Value value, plan::ClipGroupOptions& out, Bounds);
  static void write(JsonWriter& writer, const plan::ClipGroupOptions& options);
  static Json schema(SchemaBuilder& builder, Bounds);
};

}  // namespace gradsync::rpc
