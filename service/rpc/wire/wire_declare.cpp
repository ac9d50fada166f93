#include "rpc/wire/wire_declare.hpp"

namespace gradsync::rpc {

namespace {

enum class PlacementName : std::uint8_t { Replicate, Shard, Only, Partial };
enum class TargetName : std::uint8_t { Replicate, Shard };

struct WireTarget {
  TargetName kind = TargetName::Replicate;
  std::optional<std::int64_t> dim;
};

struct WirePlacement {
  std::vector<std::string> axes;
  PlacementName kind = PlacementName::Replicate;
  std::optional<std::int64_t> dim;
  std::optional<std::vector<std::int64_t>> at;
  std::optional<plan::ReduceOp> op;
  std::optional<WireTarget> to;
};

const char* name_of(PlacementName kind) {
  switch (kind) {
    case PlacementName::Replicate:
      return "replicate";
    case PlacementName::Shard:
      return "shard";
    case PlacementName::Only:
      return "only";
    case PlacementName::Partial:
      return "partial";
  }
  return "";
}

/// A field belongs to some kinds only; where it belongs it must be there.
bool check_field(FieldReader& reader, const char* field, bool given, bool belongs, const char* kind) {
  if (given == belongs) {
    return true;
  }
  const FieldReader::Step step(reader, field);
  return given ? reader.fail(std::string("does not belong to the kind \"") + kind + "\"")
               : reader.fail(std::string("is missing for the kind \"") + kind + "\"");
}

}  // namespace

void append(plan::RankDeclaration& declaration, WireTensor tensor) {
  plan::TensorDeclaration& planned = declaration.tensors.own().emplace_back(std::move(tensor.declaration));
  planned.local_shape = tensor.local_shape ? std::move(*tensor.local_shape) : planned.shape;
  std::vector<std::string>& fingerprints = declaration.weight_fingerprints;
  const bool given = tensor.weight_fingerprint && !tensor.weight_fingerprint->empty();
  if (given || !fingerprints.empty()) {
    fingerprints.resize(declaration.tensors.size());
  }
  if (given) {
    fingerprints.back() = std::move(*tensor.weight_fingerprint);
  }
}

template <>
struct EnumNames<PlacementName> {
  static constexpr std::array<std::pair<const char*, PlacementName>, 4> kEntries{{
      {"replicate", PlacementName::Replicate},
      {"shard", PlacementName::Shard},
      {"only", PlacementName::Only},
      {"partial", PlacementName::Partial},
  }};
};

template <>
struct EnumNames<TargetName> {
  static constexpr std::array<std::pair<const char*, TargetName>, 2> kEntries{{
      {"replicate", TargetName::Replicate},
      {"shard", TargetName::Shard},
  }};
};

template <>
struct Fields<WireTarget> {
  static constexpr const char* kName = "PartialTarget";

  static void visit(auto& v, auto& s) {
    v.required("kind", s.kind, "what the axis is after the reduction");
    v.optional("dim", s.dim, "for shard: the dimension", kNatural);
  }
};

template <>
struct Fields<WirePlacement> {
  static constexpr const char* kName = "Placement";

  static void visit(auto& v, auto& s) {
    v.required("axes", s.axes, "axis names; several are one flattened axis", Bounds{1, 64});
    v.required("kind", s.kind, "what the axes do to the tensor");
    v.optional("dim", s.dim, "for shard: the dimension", kNatural);
    v.optional("at", s.at, "for only: the coordinates that hold the tensor");
    v.optional("op", s.op, "for partial: the reduction");
    v.optional("to", s.to, "for partial: what it becomes");
  }
};

bool Codec<plan::Placement>::read(FieldReader& reader, Value value, plan::Placement& out, Bounds) {
  WirePlacement wire;
  if (!Codec<WirePlacement>::read(reader, value, wire, {})) {
    return false;
  }
  const bool partial = wire.kind == PlacementName::Partial;
  const char* kind = name_of(wire.kind);
  if (!check_field(reader, "dim", wire.dim.has_value(), wire.kind == PlacementName::Shard, kind) ||
      !check_field(reader, "at", wire.at.has_value(), wire.kind == PlacementName::Only, kind) ||
      !check_field(reader, "op", wire.op.has_value(), partial, kind) ||
      !check_field(reader, "to", wire.to.has_value(), partial, kind)) {
    return false;
  }
  out.axes = std::move(wire.axes);
  switch (wire.kind) {
    case PlacementName::Replicate:
      out.kind = plan::Replicate{};
      return true;
    case PlacementName::Shard:
      out.kind = plan::Shard{*wire.dim};
      return true;
    case PlacementName::Only:
      out.kind = plan::Only{std::move(*wire.at)};
      return true;
    case PlacementName::Partial:
      break;
  }
  const bool to_shard = wire.to->kind == TargetName::Shard;
  const FieldReader::Step step(reader, "to");
  if (!check_field(reader, "dim", wire.to->dim.has_value(), to_shard, to_shard ? "shard" : "replicate")) {
    return false;
  }
  plan::Partial target{*wire.op, std::nullopt};
  if (to_shard) {
    target.to_shard = plan::Shard{*wire.to->dim};
  }
  out.kind = target;
  return true;
}

void Codec<plan::Placement>::write(JsonWriter& writer, const plan::Placement& placement) {
  WirePlacement wire;
  wire.axes = placement.axes;
  if (const auto* shard = std::get_if<plan::Shard>(&placement.kind)) {
    wire.kind = PlacementName::Shard;
    wire.dim = shard->dim;
  } else if (const auto* only = std::get_if<plan::Only>(&placement.kind)) {
    wire.kind = PlacementName::Only;
    wire.at = only->at;
  } else if (const auto* partial = std::get_if<plan::Partial>(&placement.kind)) {
    wire.kind = PlacementName::Partial;
    wire.op = partial->op;
    wire.to = WireTarget{};
    if (partial->to_shard) {
      wire.to = WireTarget{TargetName::Shard, partial->to_shard->dim};
    }
  }
  Codec<WirePlacement>::write(writer, wire);
}

Json Codec<plan::Placement>::schema(SchemaBuilder& builder, Bounds) {
  return Codec<WirePlacement>::schema(builder, {});
}

}  // namespace gradsync::rpc
