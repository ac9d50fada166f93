#include "rpc/wire/wire_step.hpp"

namespace gradsync::rpc {

using Buckets = Codec<std::vector<std::uint32_t>>;

bool Codec<ReadySet>::read(FieldReader& reader, Value value, ReadySet& out, Bounds) {
  if (value.is(TokenType::String) && value.text() == "all") {
    out.all = true;
    return true;
  }
  if (!value.is(TokenType::Array)) {
    return reader.wrong_type(value, "\"all\" or a list of buckets");
  }
  return Buckets::read(reader, value, out.buckets, {});
}

void Codec<ReadySet>::write(JsonWriter& writer, const ReadySet& ready) {
  if (ready.all) {
    writer.value(std::string_view("all"));
  } else {
    Buckets::write(writer, ready.buckets);
  }
}

Json Codec<ReadySet>::schema(SchemaBuilder& builder, Bounds) {
  return Json{{"anyOf", Json::array({Json{{"const", "all"}}, Buckets::schema(builder, {})})}};
}

}  // namespace gradsync::rpc
