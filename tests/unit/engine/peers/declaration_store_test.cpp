#include "engine/peers/declarations/declaration_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>

namespace gradsync::engine {
namespace {

using ::testing::HasSubstr;

plan::TensorDeclaration tensor(const std::string& name) {
  plan::TensorDeclaration tensor;
  tensor.name = name;
  tensor.shape = tensor.local_shape = {4, 2};
  tensor.mesh = "world";
  tensor.placements = {{{"dp"}, plan::Partial{plan::ReduceOp::Sum, std::nullopt}}};
  return tensor;
}

plan::RankDeclaration declaration_of(int tensors) {
  plan::RankDeclaration declaration;
  declaration.options.data_path = plan::DataPath::Stats;
  std::vector<plan::TensorDeclaration> list;
  for (int i = 0; i < tensors; ++i) {
    list.push_back(tensor("layers." + std::to_string(i) + ".weight"));
  }
  declaration.tensors = plan::TensorList(std::move(list));
  return declaration;
}

ContentHash hash_after(const std::function<void(plan::RankDeclaration&, plan::TensorDeclaration&)>& change) {
  plan::RankDeclaration declaration = declaration_of(1);
  std::vector<plan::TensorDeclaration> list(declaration.tensors.begin(), declaration.tensors.end());
  change(declaration, list.front());
  declaration.tensors = plan::TensorList(std::move(list));
  return content_hash_of(declaration);
}

TEST(ContentHash, differs_where_anything_that_a_rank_declares_differs) {
  using Declaration = plan::RankDeclaration;
  using Tensor = plan::TensorDeclaration;
  const std::vector<std::function<void(Declaration&, Tensor&)>> changes{
      [](Declaration&, Tensor&) {},
      [](Declaration&, Tensor& t) { t.name += "x"; },
      [](Declaration&, Tensor& t) {
        t.shape = {2, 4};
      },
      [](Declaration&, Tensor& t) {
        t.local_shape = {2, 2};
      },
      [](Declaration&, Tensor& t) {
        t.local_offset = {0, 0};
      },
      [](Declaration&, Tensor& t) { t.dtype = plan::DType::BFloat16; },
      [](Declaration&, Tensor& t) { t.mesh = "experts"; },
      [](Declaration&, Tensor& t) { t.placements.front().kind = plan::Replicate{}; },
      [](Declaration&, Tensor& t) { t.placements.front().axes = {"tp"}; },
      [](Declaration&, Tensor& t) { t.divisor = 2; },
      [](Declaration&, Tensor& t) { t.tied = "embedding"; },
      [](Declaration&, Tensor& t) { t.clip_group = "experts"; },
      [](Declaration&, Tensor& t) { t.layer = "0"; },
      [](Declaration&, Tensor& t) { t.split_order = {"dp"}; },
      [](Declaration& d, Tensor&) { d.options.data_path = plan::DataPath::Arena; },
      [](Declaration& d, Tensor&) { d.options.accumulate = 2; },
      [](Declaration& d, Tensor&) { d.options.norm_type = std::numeric_limits<double>::infinity(); },
      [](Declaration& d, Tensor&) { d.options.mode = plan::ClipMode::Torch; },
      [](Declaration& d, Tensor&) {
        d.options.clip = {{"all", {1.0}}};
      },
      [](Declaration& d, Tensor&) {
        d.options.clip = {{"all", {2.0}}};
      },
      [](Declaration& d, Tensor&) { d.options.buckets = plan::BucketRule::Torch; },
      [](Declaration& d, Tensor&) { d.options.fingerprint = "xxh3"; },
      [](Declaration& d, Tensor&) { d.options.partial_sums = plan::PartialSums::BFloat16; },
  };
  std::set<ContentHash> hashes;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const ContentHash hash = hash_after(changes[i]);
    EXPECT_EQ(hash.size(), 32u);
    EXPECT_TRUE(hashes.insert(hash).second) << "change " << i;
    EXPECT_EQ(hash, hash_after(changes[i]));
  }
}

TEST(ContentHash, is_the_same_whatever_the_weights_are_and_whatever_measures) {
  const auto other = [](plan::RankDeclaration& d, plan::TensorDeclaration&) {
    d.weight_fingerprints = {"00"};
    d.measured_by = "kernels";
  };
  EXPECT_EQ(hash_after(other), hash_after([](auto&, auto&) {}));
}

/// A node that has a declaration, and one that wants it.
class Declarations : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kMost = 64u << 20;

  explicit Declarations() { has.add(hash, declaration); }

  const plan::RankDeclaration declaration = declaration_of(5000);
  const ContentHash hash = content_hash_of(declaration);
  FairBudget budget{kMost, 0};
  DeclarationStore has{budget, {1000, 1}};
  DeclarationStore wants{budget, {1000, 2}};
};

TEST_F(Declarations, arrive_page_by_page) {
  EXPECT_EQ(budget.held(), 0u) << "what ranks here have declared counts elsewhere";
  std::vector<PeerDeclaration> pages = has.pages_of(hash);
  ASSERT_GT(pages.size(), 1u);
  for (PeerDeclaration& page : pages) {
    EXPECT_EQ(wants.find(hash), nullptr);
    EXPECT_EQ(page.pages, pages.size());
    EXPECT_FALSE(wants.take(page));
    EXPECT_FALSE(wants.take(page)) << "a page that comes twice";
  }
  const auto came = wants.find(hash);
  ASSERT_NE(came, nullptr);
  EXPECT_EQ(came->options, declaration.options);
  EXPECT_EQ(came->tensors, declaration.tensors);
  EXPECT_GT(budget.held(), 0u);
  wants.keep_only(std::vector{came});
  EXPECT_NE(wants.find(hash), nullptr);
  wants.keep_only({});
  EXPECT_EQ(wants.find(hash), nullptr);
  EXPECT_EQ(budget.held(), 0u);
}

TEST_F(Declarations, begin_anew_after_their_link_ended) {
  const std::vector<PeerDeclaration> pages = has.pages_of(hash);
  EXPECT_FALSE(wants.take(pages[0]));
  for (const PeerDeclaration& page : pages) {
    EXPECT_FALSE(wants.take(page));
  }
  EXPECT_NE(wants.find(hash), nullptr);
  EXPECT_EQ(wants.pages_of(hash).size(), pages.size()) << "it serves others";
}

TEST_F(Declarations, without_their_beginning_are_nothing) {
  std::vector<PeerDeclaration> pages = has.pages_of(hash);
  pages.erase(pages.begin());
  for (const PeerDeclaration& page : pages) {
    EXPECT_FALSE(wants.take(page));
  }
  EXPECT_EQ(wants.find(hash), nullptr);
  EXPECT_EQ(budget.held(), 0u);
}

TEST_F(Declarations, that_are_not_what_they_are_called_are_refused_and_not_kept) {
  std::vector<PeerDeclaration> pages = has.pages_of(hash);
  pages.back().tensors.back().divisor = 3;
  std::optional<Error> error;
  for (PeerDeclaration& page : pages) {
    EXPECT_FALSE(error);
    error = wants.take(page);
  }
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("what came as the declaration " + hash));
  EXPECT_EQ(wants.find(hash), nullptr);
  EXPECT_EQ(budget.held(), 0u);
}

TEST_F(Declarations, that_have_no_room_are_refused_and_what_came_of_them_is_let_go) {
  FairBudget narrow{2u << 20, 0};
  DeclarationStore poor{narrow, {1000, 2}};
  std::optional<Error> error;
  for (const PeerDeclaration& page : has.pages_of(hash)) {
    error = error ? error : poor.take(page);
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::LimitExceeded);
  EXPECT_THAT(error->message, HasSubstr("at most 1.0 MiB"));
  EXPECT_EQ(narrow.held(), 0u);
}

TEST_F(Declarations, of_no_tensor_have_one_page) {
  const plan::RankDeclaration none = declaration_of(0);
  has.add(content_hash_of(none), none);
  const std::vector<PeerDeclaration> pages = has.pages_of(content_hash_of(none));
  ASSERT_EQ(pages.size(), 1u);
  EXPECT_FALSE(wants.take(pages.front()));
  EXPECT_NE(wants.find(content_hash_of(none)), nullptr);
  EXPECT_GT(budget.held(), 0u) << "names of nothing would be free else, however many another node sends";
}

}  // namespace
}  // namespace gradsync::engine
