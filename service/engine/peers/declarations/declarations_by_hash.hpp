#pragma once
// The declarations of this daemon by their contents, for both machines of a job: one object for ranks that declared the
// same, wherever they are. Fingerprints of weights are not part of them.

#include "engine/peers/peer_message.hpp"
#include "plan/declaration.hpp"

#include <memory>
#include <optional>
#include <vector>

namespace gradsync::engine {

class DeclarationsByHash {
 public:
  virtual ~DeclarationsByHash() = default;

  /// Null: it is not here, or not yet whole.
  [[nodiscard]] virtual std::shared_ptr<const plan::RankDeclaration> find(const ContentHash& hash) const = 0;

  /// One that is here, for a node that lacks it; empty: it is not here.
  [[nodiscard]] virtual std::vector<PeerDeclaration> pages_of(const ContentHash& hash) const = 0;

  /// A page of one that was wanted. The error says that what came does not have its hash, or has no room.
  [[nodiscard]] virtual std::optional<Error> take(PeerDeclaration page) = 0;
};

}  // namespace gradsync::engine
