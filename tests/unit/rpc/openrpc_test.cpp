#include "rpc/handlers/openrpc.hpp"

#include "committed_file.hpp"
#include "rpc/handlers/method.hpp"

#include <gtest/gtest.h>

#include <set>

namespace gradsync::rpc {
namespace {

void collect_references(const Json& value, std::set<std::string>& references) {
  if (value.is_object() && value.contains("$ref")) {
    references.insert(value["$ref"].get<std::string>());
  }
  for (const Json& child : value) {
    if (child.is_structured()) {
      collect_references(child, references);
    }
  }
}

TEST(OpenRpc, is_the_committed_document) { expect_committed("docs/openrpc.json", openrpc_document().dump(2) + "\n"); }

TEST(OpenRpc, has_every_method_of_the_table) {
  const Json document = openrpc_document();
  ASSERT_EQ(document["methods"].size(), methods().size());
  for (std::size_t i = 0; i < methods().size(); ++i) {
    EXPECT_EQ(document["methods"][i]["name"], methods()[i].name);
    EXPECT_EQ(find_method(methods()[i].name), i);
  }
}

TEST(OpenRpc, refers_only_to_schemas_it_has) {
  const Json document = openrpc_document();
  std::set<std::string> references;
  collect_references(document, references);
  EXPECT_FALSE(references.empty());
  for (const std::string& reference : references) {
    EXPECT_TRUE(document.contains(Json::json_pointer(reference.substr(1)))) << reference;
  }
}

/// docs/protocol.md has a section per method, and none that does not exist.
TEST(OpenRpc, is_described_in_the_protocol) {
  const std::string text = read_committed("docs/protocol.md");
  for (const Method& method : methods()) {
    EXPECT_NE(text.find(std::string("\n### `") + method.name + "`"), std::string::npos) << method.name;
  }
}

}  // namespace
}  // namespace gradsync::rpc
