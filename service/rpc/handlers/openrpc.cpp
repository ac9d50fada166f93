#include "rpc/handlers/openrpc.hpp"

#include "rpc/error_codes.hpp"
#include "rpc/handlers/method.hpp"
#include "rpc/wire/wire_read.hpp"
#include "rpc/wire/wire_step.hpp"

namespace gradsync::rpc {

namespace {

const char* name_of(Needs needs) {
  switch (needs) {
    case Needs::Nothing:
      return "nothing";
    case Needs::Local:
      return "local";
    case Needs::Initialize:
      return "initialize";
    case Needs::Attach:
      return "attach";
  }
  return "";
}

/// OpenRPC lists params one by one; the struct's schema has them as properties.
Json content_descriptors(const Json& schema) {
  Json list = Json::array();
  const Json required = schema.value("required", Json::array());
  for (const auto& [name, property] : schema["properties"].items()) {
    const bool must = std::find(required.begin(), required.end(), name) != required.end();
    list.push_back(Json{{"name", name}, {"required", must}, {"schema", property}});
  }
  return list;
}

Json method_object(const Method& method, SchemaBuilder& builder) {
  SchemaBuilder params;  // params are inlined; what they refer to is shared
  params.components = builder.components;
  const std::string params_name = method.params_schema(params)["$ref"].get<std::string>().substr(21);
  Json descriptors = content_descriptors(params.components[params_name]);
  if (!builder.components.contains(params_name)) {
    params.components.erase(params_name);
  }
  builder.components = std::move(params.components);

  Json object{
      {"name", method.name},
      {"summary", method.summary},
      {"paramStructure", "by-name"},
      {"params", std::move(descriptors)},
      {"x-needs", name_of(method.needs)},
  };
  if (method.form == Form::Notification) {
    object["x-notification"] = true;
  } else {
    object["result"] = Json{{"name", "result"}, {"schema", method.result_schema(builder)}};
  }
  return object;
}

}  // namespace

Json openrpc_document() {
  SchemaBuilder builder;
  Json list = Json::array();
  for (const Method& method : methods()) {
    list.push_back(method_object(method, builder));
  }
  // Payloads of events.notification, which no method returns.
  Codec<AlertEvent>::schema(builder, {});
  Codec<EpochEvent>::schema(builder, {});
  return Json{
      {"openrpc", "1.3.2"},
      {"info",
       {{"title", "gradsync"},
        {"version", "1.0.0"},
        {"description", "JSON-RPC of gradsyncd, subprotocol gradsync.v1.jsonrpc. See docs/protocol.md."}}},
      {"methods", std::move(list)},
      {"components", {{"schemas", std::move(builder.components)}}},
      {"x-errors", Json::parse(error_table_json())},
  };
}

}  // namespace gradsync::rpc
