#include "engine/peers/declarations/declaration_store.hpp"

#include "base/text/text.hpp"
#include "plan/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace gradsync::engine {

namespace {

// As JSON a tensor is seldom longer than in memory, and at most six times as long, where all of its name is escaped.
constexpr std::uint64_t kPageBytes = 640u << 10;
constexpr std::uint64_t kMostPages = 250;

std::uint64_t memory_of(const std::vector<plan::TensorDeclaration>& tensors) {
  std::uint64_t bytes = 0;
  for (const plan::TensorDeclaration& tensor : tensors) {
    bytes += plan::memory_of(tensor);
  }
  return bytes;
}

Error without_room(const FairBudget::Refusal& refused, std::uint64_t bytes) {
  return make_error(
      ErrorCode::LimitExceeded,
      fmt::format(
          "declarations of {} hold {}, a page of one that another node has needs {} more; at most {}",
          refused.whose,
          human_bytes(refused.held),
          human_bytes(bytes),
          human_bytes(refused.most)
      ),
      "end jobs that are not needed, or declare fewer tensors"
  );
}

Error of_other_content(const ContentHash& hash, const ContentHash& came) {
  return make_error(
      ErrorCode::InternalError,
      fmt::format("what came as the declaration {} is {}", hash, came),
      "install the same release of gradsyncd on all nodes"
  );
}

}  // namespace

void DeclarationStore::add(const ContentHash& hash, const plan::RankDeclaration& declaration) {
  plan::RankDeclaration content;
  content.options = declaration.options;
  content.tensors = declaration.tensors;
  whole_.erase(hash);
  whole_.emplace(hash, Whole{std::make_shared<const plan::RankDeclaration>(std::move(content))});
  arriving_.erase(hash);
}

void DeclarationStore::keep_only(const SharedList<std::shared_ptr<const plan::RankDeclaration>>& used) {
  std::set<const plan::RankDeclaration*> kept;
  const plan::RankDeclaration* last = nullptr;  // thousands of ranks after each other may have declared the same
  for (const std::shared_ptr<const plan::RankDeclaration>& declaration : used) {
    if (std::exchange(last, declaration.get()) != declaration.get()) {
      kept.insert(declaration.get());
    }
  }
  std::erase_if(whole_, [&](const auto& each) { return !kept.contains(each.second.declaration.get()); });
  arriving_.clear();
}

std::shared_ptr<const plan::RankDeclaration> DeclarationStore::find(const ContentHash& hash) const {
  const auto found = whole_.find(hash);
  return found == whole_.end() ? nullptr : found->second.declaration;
}

std::vector<PeerDeclaration> DeclarationStore::pages_of(const ContentHash& hash) const {
  std::vector<PeerDeclaration> pages;
  const std::shared_ptr<const plan::RankDeclaration> declaration = find(hash);
  if (!declaration) {
    return pages;
  }
  std::uint64_t all = 0;
  for (const plan::TensorDeclaration& tensor : declaration->tensors) {
    all += plan::memory_of(tensor);
  }
  const std::uint64_t most = std::max(kPageBytes, all / kMostPages + 1);
  std::uint64_t bytes = most;
  for (const plan::TensorDeclaration& tensor : declaration->tensors) {
    if (bytes >= most) {
      pages.push_back({hash, static_cast<std::uint32_t>(pages.size()), 0, declaration->options, {}});
      bytes = 0;
    }
    pages.back().tensors.push_back(tensor);
    bytes += plan::memory_of(tensor);
  }
  if (pages.empty()) {
    pages.push_back({hash, 0, 0, declaration->options, {}});
  }
  for (PeerDeclaration& page : pages) {
    page.pages = static_cast<std::uint32_t>(pages.size());
  }
  return pages;
}

std::optional<Error> DeclarationStore::take(PeerDeclaration page) {
  if (whole_.contains(page.hash)) {
    return std::nullopt;
  }
  if (page.page == 0) {
    arriving_.erase(page.hash);
    arriving_.emplace(
        page.hash, Arriving{ContentHasher(page.options), page.options, {}, 0, FairBudget::Share(budget_, holder_, 0)}
    );
  }
  const auto found = arriving_.find(page.hash);
  if (found == arriving_.end() || found->second.next_page != page.page) {
    return std::nullopt;  // of a link that has ended
  }
  Arriving& arriving = found->second;
  std::optional<Error> error = add_page(arriving, page);
  if (!error && arriving.next_page < page.pages) {
    return std::nullopt;
  }
  if (!error && arriving.hasher.hash() != page.hash) {
    error = of_other_content(page.hash, arriving.hasher.hash());
  }
  if (!error) {
    plan::RankDeclaration declaration;
    declaration.options = std::move(arriving.options);
    declaration.tensors = std::move(arriving.tensors);
    Whole whole{std::make_shared<const plan::RankDeclaration>(std::move(declaration)), std::move(arriving.held)};
    whole_.emplace(page.hash, std::move(whole));
  }
  arriving_.erase(found);
  return error;
}

/// The options are those of page 0: what other pages say of them is not read.
std::optional<Error> DeclarationStore::add_page(Arriving& arriving, PeerDeclaration& page) {
  std::uint64_t bytes = memory_of(page.tensors);
  if (page.page == 0) {  // so that one without tensors is not free
    plan::RankDeclaration bare;
    bare.options = arriving.options;
    bytes += plan::memory_beside_tensors(bare) + sizeof(Arriving);
  }
  if (const auto refused = budget_.refuse(holder_, bytes)) {
    return without_room(*refused, bytes);
  }
  arriving.held.grow(bytes);
  for (plan::TensorDeclaration& tensor : page.tensors) {
    arriving.hasher.add(tensor);
    arriving.tensors.push_back(std::move(tensor));
  }
  ++arriving.next_page;
  return std::nullopt;
}

}  // namespace gradsync::engine
