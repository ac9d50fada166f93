// gradients.declare as it comes over the wire: what each field becomes, and where an error points.

#include "rpc/wire/wire_declare.hpp"

#include <gtest/gtest.h>

namespace gradsync::rpc {
namespace {

Result<DeclareParams> declare(const std::string& placement, const std::string& more = "") {
  const std::string text =
      R"({"buffer":1,"tensors":[{"name":"w","shape":[4,2],"dtype":"bfloat16","mesh":"m","placements":[)" + placement +
      "]" + more + "}]}";
  const Result<Tape> tape = read_json(text, 32);
  EXPECT_TRUE(tape) << text;
  DeclareParams params;
  if (const Result<void> read = read_params(tape->root(), params); !read) {
    return read.error();
  }
  return params;
}

Error refused_placement(const std::string& placement, const std::string& more = "") {
  const Result<DeclareParams> params = declare(placement, more);
  EXPECT_FALSE(params) << placement;
  return params ? Error{} : params.error();
}

plan::Placement placement(const std::string& text) {
  const Result<DeclareParams> params = declare(text);
  EXPECT_TRUE(params) << text << (params ? "" : params.error().message);
  return params ? params->tensors[0].declaration.placements[0] : plan::Placement{};
}

TEST(DeclareWire, takes_names_as_long_as_the_planner_does) {
  const auto layer = [](std::size_t bytes) { return R"(,"layer":")" + std::string(bytes, 'x') + "\""; };
  EXPECT_TRUE(declare("", layer(plan::kMaxNameBytes)));
  const Error error = refused_placement("", layer(plan::kMaxNameBytes + 1));
  EXPECT_EQ(error.path, "tensors[0].layer");
  EXPECT_EQ(error.message, "tensors[0].layer is a string of 513 bytes; expected 1 to 512");
}

TEST(DeclareWire, reads_every_kind_of_placement) {
  EXPECT_EQ(placement(R"({"axes":["dp"],"kind":"replicate"})"), (plan::Placement{{"dp"}, plan::Replicate{}}));
  EXPECT_EQ(placement(R"({"axes":["tp"],"kind":"shard","dim":1})"), (plan::Placement{{"tp"}, plan::Shard{1}}));
  EXPECT_EQ(placement(R"({"axes":["pp"],"kind":"only","at":[0,2]})"), (plan::Placement{{"pp"}, plan::Only{{0, 2}}}));
  EXPECT_EQ(
      placement(R"({"axes":["a","b"],"kind":"partial","op":"mean","to":{"kind":"replicate"}})"),
      (plan::Placement{{"a", "b"}, plan::Partial{plan::ReduceOp::Mean, std::nullopt}})
  );
  EXPECT_EQ(
      placement(R"({"axes":["dp"],"kind":"partial","op":"sum","to":{"kind":"shard","dim":0}})"),
      (plan::Placement{{"dp"}, plan::Partial{plan::ReduceOp::Sum, plan::Shard{0}}})
  );
}

TEST(DeclareWire, points_at_the_field_that_does_not_fit_the_kind) {
  EXPECT_EQ(refused_placement(R"({"axes":["dp"],"kind":"shard"})").path, "tensors[0].placements[0].dim");
  EXPECT_EQ(refused_placement(R"({"axes":["dp"],"kind":"replicate","dim":0})").path, "tensors[0].placements[0].dim");
  EXPECT_EQ(refused_placement(R"({"axes":["dp"],"kind":"only"})").path, "tensors[0].placements[0].at");
  EXPECT_EQ(refused_placement(R"({"axes":["dp"],"kind":"partial","op":"sum"})").path, "tensors[0].placements[0].to");
  EXPECT_EQ(
      refused_placement(R"({"axes":["dp"],"kind":"partial","op":"sum","to":{"kind":"shard"}})").path,
      "tensors[0].placements[0].to.dim"
  );
  EXPECT_EQ(refused_placement(R"({"axes":["dp"],"kind":"partly"})").path, "tensors[0].placements[0].kind");
  EXPECT_EQ(refused_placement(R"({"axes":[],"kind":"replicate"})").path, "tensors[0].placements[0].axes");
  EXPECT_EQ(refused_placement("", R"(,"dtyp":1)").hint, "did you mean \"dtype\"?");
}

TEST(DeclareWire, names_the_values_an_enum_may_have) {
  const Error error = refused_placement(R"({"axes":["dp"],"kind":"partial","op":"avg","to":{"kind":"replicate"}})");
  EXPECT_EQ(error.message, R"(tensors[0].placements[0].op is "avg"; expected one of "sum", "mean")");
}

TEST(DeclareWire, reads_which_rule_fills_the_buckets_and_how_partial_sums_travel) {
  const auto with_options = [](const std::string& options) {
    const Result<Tape> tape = read_json(R"({"buffer":1,"tensors":[],"options":)" + options + "}", 32);
    EXPECT_TRUE(tape) << options;
    DeclareParams params;
    const Result<void> read = read_params(tape->root(), params);
    return read ? Result<plan::DeclareOptions>(params.options.value()) : Result<plan::DeclareOptions>(read.error());
  };
  EXPECT_EQ(with_options("{}")->buckets, plan::BucketRule::Default);
  EXPECT_EQ(with_options(R"({"buckets":"default"})")->buckets, plan::BucketRule::Default);
  EXPECT_EQ(with_options(R"({"buckets":"torch"})")->buckets, plan::BucketRule::Torch);
  const Error error = with_options(R"({"buckets":"ddp"})").error();
  EXPECT_EQ(error.path, "options.buckets");
  EXPECT_EQ(error.message, R"(options.buckets is "ddp"; expected one of "default", "torch")");
  EXPECT_EQ(with_options("{}")->partial_sums, plan::PartialSums::Exact);
  EXPECT_EQ(with_options(R"({"partial_sums":"bfloat16"})")->partial_sums, plan::PartialSums::BFloat16);
  const Error sums = with_options(R"({"partial_sums":"float16"})").error();
  EXPECT_EQ(sums.path, "options.partial_sums");
  EXPECT_EQ(sums.message, R"(options.partial_sums is "float16"; expected one of "exact", "bfloat16")");
}

TEST(DeclareWire, reads_the_optional_fields_of_a_tensor) {
  const Result<DeclareParams> params = declare(
      R"({"axes":["dp"],"kind":"replicate"})",
      R"(,"local_shape":[2,2],"local_offset":[2,0],"divisor":4,"tied":"t","clip_group":"g","layer":"l",
         "split_order":["tp","dp"],"weight_fingerprint":"f")"
  );
  ASSERT_TRUE(params);
  const WireTensor& tensor = params->tensors[0];
  EXPECT_EQ(tensor.local_shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(tensor.declaration.local_offset, (std::vector<std::int64_t>{2, 0}));
  EXPECT_EQ(tensor.declaration.divisor, 4.0);
  EXPECT_EQ(tensor.declaration.tied, "t");
  EXPECT_EQ(tensor.declaration.clip_group, "g");
  EXPECT_EQ(tensor.declaration.layer, "l");
  EXPECT_EQ(tensor.declaration.split_order, (std::vector<std::string>{"tp", "dp"}));
  EXPECT_EQ(tensor.weight_fingerprint, "f");
}

TEST(DeclareWire, what_is_written_reads_back_equal) {
  for (const char* text :
       {R"({"axes":["dp"],"kind":"replicate"})",
        R"({"axes":["dp"],"kind":"only","at":[3]})",
        R"({"axes":["dp"],"kind":"partial","op":"sum","to":{"kind":"shard","dim":0}})"}) {
    const plan::Placement first = placement(text);
    EXPECT_EQ(placement(to_json(first)), first) << text;
  }
}

}  // namespace
}  // namespace gradsync::rpc
