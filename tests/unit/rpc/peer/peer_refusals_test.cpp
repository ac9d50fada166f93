// What a daemon refuses of another one, whatever the message: unknown and missing fields, other types, and what is no
// message at all. peer_bounds_test.cpp has the bounds.

#include "peer_texts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

namespace gradsync::rpc {
namespace {

using Pointer = Json::json_pointer;

/// "/params/by_content/0/hash" → "by_content[0].hash".
std::string path_of(Pointer pointer) {
  std::vector<std::string> parts;
  for (; !pointer.empty(); pointer.pop_back()) {
    parts.insert(parts.begin(), pointer.back());
  }
  std::string path;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const bool index = parts[i].find_first_not_of("0123456789") == std::string::npos;
    path += index ? "[" + parts[i] + "]" : (path.empty() ? "" : ".") + parts[i];
  }
  return path;
}

void collect_pointers(const Json& value, const Pointer& at, std::vector<Pointer>& pointers) {
  pointers.push_back(at);
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      collect_pointers(member, at / key, pointers);
    }
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      collect_pointers(value[i], at / i, pointers);
    }
  }
}

/// Everything in the params of a sample, the params themselves first.
std::vector<Pointer> pointers_in(const PeerSample& sample) {
  std::vector<Pointer> pointers;
  collect_pointers(sample.text["params"], Pointer("/params"), pointers);
  return pointers;
}

TEST(PeerRefusals, an_unknown_field_is_refused_in_every_object_of_every_kind) {
  std::size_t objects = 0;
  for (const PeerSample& sample : all_samples()) {
    for (const Pointer& pointer : pointers_in(sample)) {
      if (!sample.text[pointer].is_object()) {
        continue;
      }
      ++objects;
      Json changed = sample.text;
      changed[pointer]["zzzzzzzz"] = 1;
      const std::optional<Error> error = refusal_of(changed.dump(), sample.to_member);
      ASSERT_TRUE(error) << changed.dump();
      EXPECT_EQ(error->code, ErrorCode::InvalidParams);
      EXPECT_EQ(error->path, path_of(pointer / "zzzzzzzz"));
      const std::string method = sample.text["method"];
      EXPECT_EQ(error->message, method + ": " + error->path + " is not a known field");
      EXPECT_NE(error->hint, "") << error->message;
    }
  }
  EXPECT_GT(objects, 100U);
}

/// What may be absent anywhere, by name. `buckets` and so on are as in gradients.declare.
TEST(PeerRefusals, a_missing_field_is_refused_unless_it_may_be_absent) {
  const std::set<std::string> expected{// of kinds
                                       "declared",
                                       "max_norm",
                                       "row_hashes",
                                       "box_hashes",
                                       "rows",
                                       "tensors",
                                       "words",
                                       "weights",
                                       "nonfinite",
                                       "divergence",
                                       "missing",
                                       "absent",
                                       // of errors
                                       "hint",
                                       "path",
                                       "job",
                                       "tensor",
                                       "node",
                                       "ranks",
                                       "rank",
                                       "step",
                                       "bucket",
                                       "epoch",
                                       "attempt",
                                       "waited_s",
                                       // of declarations and meshes
                                       "sync_order",
                                       "data_path",
                                       "accumulate",
                                       "norm_type",
                                       "mode",
                                       "clip",
                                       "buckets",
                                       "partial_sums",
                                       "fingerprint",
                                       "zero_rule",
                                       "policy",
                                       "spike",
                                       "spike_factor",
                                       "watch",
                                       "percentile",
                                       "window",
                                       "warmup",
                                       "z",
                                       "alpha",
                                       "local_shape",
                                       "local_offset",
                                       "divisor",
                                       "tied",
                                       "clip_group",
                                       "layer",
                                       "listen",
                                       "split_order",
                                       "cells",
                                       "devices",
                                       // of communicators
                                       "cpu_gradients",
                                       "communicators",
                                       "id",
                                       "instance"};
  std::set<std::string> may_be_absent;
  for (const PeerSample& sample : all_samples()) {
    for (const Pointer& pointer : pointers_in(sample)) {
      if (pointer.parent_pointer().empty() || !sample.text[pointer.parent_pointer()].is_object()) {
        continue;
      }
      Json changed = sample.text;
      changed[pointer.parent_pointer()].erase(pointer.back());
      const std::optional<Error> error = refusal_of(changed.dump(), sample.to_member);
      if (!error) {
        may_be_absent.insert(pointer.back());
      } else {
        EXPECT_EQ(error->code, ErrorCode::InvalidParams);
        EXPECT_NE(error->hint, "");
        EXPECT_FALSE(error->path.empty() && sample.text["method"] != "peer.compare") << error->message;
      }
    }
  }
  std::set<std::string> differ;
  std::ranges::set_symmetric_difference(may_be_absent, expected, std::inserter(differ, differ.end()));
  EXPECT_EQ(differ, std::set<std::string>());
}

TEST(PeerRefusals, a_value_of_another_type_is_refused_by_its_path) {
  std::size_t values = 0;
  for (const PeerSample& sample : all_samples()) {
    for (const Pointer& pointer : pointers_in(sample)) {
      const Json& value = sample.text[pointer];
      for (const Json& other :
           {Json(nullptr), Json::object(), Json(1.5), Json("?"), Json(true), Json::array({Json::array()})}) {
        const bool kind_of_number = value.is_number() && other.is_number_float();  // not all are integers
        if (other.type() == value.type() || kind_of_number || pointer.back() == "max_norm" ||
            pointer.back() == "norm_type") {  // a number or null, and a number or "Infinity"
          continue;
        }
        ++values;
        Json changed = sample.text;
        changed[pointer] = other;
        const std::optional<Error> error = refusal_of(changed.dump(), sample.to_member);
        ASSERT_TRUE(error) << changed.dump();
        const std::string method = sample.text["method"];
        EXPECT_EQ(error->message.find(pointer == Pointer("/params") ? "" : method + ": "), 0U) << error->message;
        EXPECT_EQ(error->path.find(path_of(pointer)), 0U) << error->message << " for " << path_of(pointer);
        EXPECT_NE(error->hint, "") << error->message;
      }
    }
  }
  EXPECT_GT(values, 3000U);
}

TEST(PeerRefusals, rows_of_more_than_64_boxes_are_refused) {
  Json text = sample_of("peer.rows").text;
  const Json row = text["params"]["rows"][0];
  text["params"]["rows"] = Json(std::vector<Json>(200, row));
  EXPECT_FALSE(refusal_of(text.dump(), false)) << "200 rows of one box";
  for (std::size_t box = 0; box < 200; ++box) {
    text["params"]["rows"][box]["box"] = box / 3;
  }
  EXPECT_EQ(
      refusal_of(text.dump(), false)->message, "peer.rows: rows has rows of 67 boxes; expected at most 64, box by box"
  );
}

TEST(PeerRefusals, what_belongs_to_other_kinds_of_asks_is_refused) {
  std::map<std::string, Json> asks;
  for (const PeerSample& sample : all_samples()) {
    if (sample.text["method"] == "peer.ask") {
      asks[sample.text["params"]["kind"].get<std::string>()] = sample.text;
    }
  }
  ASSERT_EQ(asks.size(), 3U);
  asks["finish"]["params"].erase("sites");
  EXPECT_EQ(
      refusal_of(asks["finish"].dump(), false)->message,
      "peer.ask: sites is missing; expected the sums of this node for finish and norm"
  );
  asks["import"]["params"].erase("state_digest");
  EXPECT_EQ(
      refusal_of(asks["import"].dump(), false)->message,
      "peer.ask: state_digest is missing; expected that of the imported state"
  );
  EXPECT_FALSE(refusal_of(asks["clip"].dump(), false));
}

struct ForeignText {
  std::string text;
  ErrorCode code;
  std::string words;  ///< in the message
};

TEST(PeerRefusals, a_message_of_a_foreign_shape_is_refused) {
  const std::string head = R"({"jsonrpc":"2.0","method":"peer.beat")";
  const std::vector<ForeignText> texts{
      {"", ErrorCode::ParseError, "ends too early"},
      {"peer.beat", ErrorCode::ParseError, "not JSON"},
      {head, ErrorCode::ParseError, "ends too early"},
      {head + R"(,"params":{}}{})", ErrorCode::ParseError, "text follows the value"},
      {head + R"(,"params":{},"params":{}})", ErrorCode::ParseError, "twice in one object"},
      {head + ",\"params\":{\"\xff\":1}}", ErrorCode::ParseError, "UTF-8"},
      {head + R"(,"params":)" + std::string(32, '[') + std::string(32, ']') + "}", ErrorCode::ParseError, "32 levels"},
      {"null", ErrorCode::InvalidRequest, "not null"},
      {"[" + head + R"(,"params":{}}])", ErrorCode::InvalidRequest, "not an array"},
      {"{}", ErrorCode::InvalidRequest, "jsonrpc is missing"},
      {R"({"jsonrpc":"2.0","result":{},"id":1})", ErrorCode::InvalidRequest, "\"result\" is not a member"},
      {R"({"jsonrpc":"1.0","method":"peer.beat","params":{}})", ErrorCode::InvalidRequest, "jsonrpc is \"1.0\""},
      {R"({"jsonrpc":"2.0","params":{}})", ErrorCode::InvalidRequest, "method is missing"},
      {R"({"jsonrpc":"2.0","method":7,"params":{}})", ErrorCode::InvalidRequest, "method is 7"},
      {head + R"(,"params":{},"id":1})", ErrorCode::InvalidRequest, "peer.beat: id is 1; expected none"},
      {head + R"(,"params":{},"id":"a"})", ErrorCode::InvalidRequest, "peer.beat: id is \"a\"; expected none"},
      {head + R"(,"params":{},"id":null})", ErrorCode::InvalidRequest, "id is null"},
      {head + "}", ErrorCode::InvalidRequest, "peer.beat: params is missing; expected an object"},
      {head + R"(,"params":[]})", ErrorCode::InvalidParams, "peer.beat: params is an array; expected an object"},
      {head + R"(,"params":null})", ErrorCode::InvalidRequest, "params is null"},
      {head + R"(,"params":{"x":1}})", ErrorCode::InvalidParams, "peer.beat: x is not a known field"},
      {R"({"jsonrpc":"2.0","method":"peer.beats","params":{}})", ErrorCode::MethodNotFound, "method is \"peer.beats\""},
      {R"({"jsonrpc":"2.0","method":"step.finish","params":{}})", ErrorCode::MethodNotFound, "expected one of peer."},
      {R"({"jsonrpc":"2.0","method":")" + std::string(60'000, 'p') + R"(","params":{}})",
       ErrorCode::MethodNotFound,
       "pp…\""},
  };
  for (const ForeignText& foreign : texts) {
    for (const bool to_member : {false, true}) {
      const std::optional<Error> error = refusal_of(foreign.text, to_member);
      ASSERT_TRUE(error) << foreign.text;
      EXPECT_EQ(error->code, foreign.code) << error->message;
      EXPECT_NE(error->message.find(foreign.words), std::string::npos) << error->message;
      EXPECT_NE(error->hint, "") << error->message;
      EXPECT_LT(error->message.size(), 1000U);
    }
  }
  EXPECT_EQ(refusal_of(texts[21].text, true)->hint, "did you mean \"peer.beat\"?");
}

TEST(PeerRefusals, a_kind_that_does_not_go_this_way_is_refused) {
  std::set<std::string> one_way;
  for (const PeerSample& sample : all_samples()) {
    const std::optional<Error> error = refusal_of(sample.text.dump(), !sample.to_member);
    if (error) {
      EXPECT_EQ(error->code, ErrorCode::MethodNotFound) << error->message;
      const std::string method = sample.text["method"];
      EXPECT_EQ(error->message.find("method is \"" + method + "\", which goes the other way"), 0U) << error->message;
      one_way.insert(method);
    }
  }
  EXPECT_EQ(one_way.size(), 22U);
}

}  // namespace
}  // namespace gradsync::rpc
