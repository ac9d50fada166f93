#include "rpc/peer/wire_peer_declaration.hpp"

namespace gradsync::rpc {

namespace {

/// What `Fields<WireTensor>` writes of a tensor, without a copy of it.
struct TensorView {
  const plan::TensorDeclaration& declaration;
  std::optional<std::vector<std::int64_t>> local_shape;
  std::optional<std::string> weight_fingerprint;
};

bool read_declared_tensor(FieldReader& reader, Value value, plan::TensorDeclaration& out) {
  WireTensor wire;
  if (!Codec<WireTensor>::read(reader, value, wire, {})) {
    return false;
  }
  if (wire.weight_fingerprint) {
    const FieldReader::Step step(reader, "weight_fingerprint");
    return reader.fail("is no part of a declaration's content", "it belongs to declared.by_content of peer.join");
  }
  out = std::move(wire.declaration);
  out.local_shape = wire.local_shape ? std::move(*wire.local_shape) : out.shape;
  return true;
}

}  // namespace

bool DeclaredTensors::read(FieldReader& reader, Value value, std::vector<plan::TensorDeclaration>& out, Bounds) {
  if (!value.is(TokenType::Array)) {
    return reader.wrong_type(value, "a list");
  }
  out.clear();
  return value.each_item([&](Value item) {
    const FieldReader::Step step(reader, out.size());
    return read_declared_tensor(reader, item, out.emplace_back());
  });
}

void DeclaredTensors::write(JsonWriter& writer, const std::vector<plan::TensorDeclaration>& tensors) {
  writer.begin_array();
  for (const plan::TensorDeclaration& tensor : tensors) {
    TensorView view{tensor, std::nullopt, std::nullopt};
    if (tensor.local_shape != tensor.shape) {
      view.local_shape = tensor.local_shape;
    }
    writer.begin_object();
    WriteVisitor visitor(writer);
    Fields<WireTensor>::visit(visitor, view);
    writer.end_object();
  }
  writer.end_array();
}

}  // namespace gradsync::rpc
