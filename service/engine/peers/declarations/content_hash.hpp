#pragma once
// The name of what one rank declares, equal on all nodes exactly where declarations are equal: XXH3-128 over the
// canonical texts of the options and of each tensor. Fingerprints of weights, and the name of what takes a rank's
// statistics, are not part of it. Pure.

#include "base/text/hash.hpp"
#include "engine/peers/peer_message.hpp"
#include "plan/declaration.hpp"

namespace gradsync::engine {

/// Takes a declaration whose tensors come page by page.
class ContentHasher {
 public:
  explicit ContentHasher(const plan::DeclareOptions& options);
  void add(const plan::TensorDeclaration& tensor);

  [[nodiscard]] ContentHash hash() const { return hash_.hex(); }

 private:
  Hash128 hash_;
};

/// Takes about a microsecond for each tensor.
[[nodiscard]] ContentHash content_hash_of(const plan::RankDeclaration& declaration);

}  // namespace gradsync::engine
