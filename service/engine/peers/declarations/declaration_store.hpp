#pragma once
// The declarations of one job by their contents: those of its ranks here, and those that came from other nodes, page by
// page. Thread: io.
//
// A job has a store of its own, so that declarations which a user has prepared to have one hash meet only that user's.
// Invariants: what `find` gives has the hash that it is found by; of one that arrives, pages count in their order, and
// page 0 begins anew, because the link that the others came over may have ended.

#include "base/fair_budget.hpp"
#include "engine/peers/declarations/content_hash.hpp"
#include "engine/peers/declarations/declarations_by_hash.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace gradsync::engine {

class DeclarationStore final : public DeclarationsByHash {
 public:
  /// What comes from other nodes counts in the budget as held by `holder`. The budget outlives the store.
  DeclarationStore(FairBudget& budget, const Holder& holder) : budget_(budget), holder_(holder) {}

  /// What a rank of this node has declared, which counts elsewhere.
  void add(const ContentHash& hash, const plan::RankDeclaration& declaration);

  /// Forgets all others than these, which `find` gave, and what has arrived in part.
  void keep_only(const SharedList<std::shared_ptr<const plan::RankDeclaration>>& used);

  [[nodiscard]] std::shared_ptr<const plan::RankDeclaration> find(const ContentHash& hash) const override;
  [[nodiscard]] std::vector<PeerDeclaration> pages_of(const ContentHash& hash) const override;
  [[nodiscard]] std::optional<Error> take(PeerDeclaration page) override;

 private:
  struct Whole {
    std::shared_ptr<const plan::RankDeclaration> declaration;
    std::optional<FairBudget::Share> held = {};  ///< of one that came from another node
  };

  struct Arriving {
    ContentHasher hasher;
    plan::DeclareOptions options;
    std::vector<plan::TensorDeclaration> tensors = {};
    std::uint32_t next_page = 0;
    FairBudget::Share held;
  };

  [[nodiscard]] std::optional<Error> add_page(Arriving& arriving, PeerDeclaration& page);

  FairBudget& budget_;
  Holder holder_;
  std::map<ContentHash, Whole> whole_;
  std::map<ContentHash, Arriving> arriving_;
};

}  // namespace gradsync::engine
