#include "engine/peers/declarations/content_hash.hpp"

#include "plan/canonical_text.hpp"
#include "plan/check/words.hpp"

#include <fmt/format.h>

namespace gradsync::engine {

ContentHasher::ContentHasher(const plan::DeclareOptions& options) {
  hash_.add(plan::canonical_text(options));
  // The text has nothing of the next two, which the digest of a plan leaves out or says elsewhere.
  hash_.add(fmt::format("{};{};{};", plan::name_of(options.buckets), options.fingerprint.size(), options.fingerprint));
}

void ContentHasher::add(const plan::TensorDeclaration& tensor) { hash_.add(plan::canonical_text(tensor)); }

ContentHash content_hash_of(const plan::RankDeclaration& declaration) {
  ContentHasher hasher(declaration.options);
  for (const plan::TensorDeclaration& tensor : declaration.tensors) {
    hasher.add(tensor);
  }
  return hasher.hash();
}

}  // namespace gradsync::engine
