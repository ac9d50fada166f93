#include "plan/declaration_pool.hpp"

#include "plan/canonical_text.hpp"
#include "plan/check/declaration_checks.hpp"
#include "plan/check/words.hpp"
#include "plan/interrupt.hpp"
#include "plan/make_plan.hpp"

#include <utility>

namespace gradsync::plan {

DeclarationPool::DeclarationPool(std::vector<Mesh> meshes, Hash hash)
    : meshes_(std::move(meshes)), hash_(std::move(hash)) {}

Result<TensorList> DeclarationPool::admit(const RankDeclaration& declaration) {
  const std::size_t hash = hash_of(declaration);
  const TensorList known = find(hash, declaration);
  if (!known.empty()) {
    const Result<void> rest = check_beside_tensors(declaration);
    return rest ? Result<TensorList>(known) : rest.error();
  }
  if (const Result<void> valid = validate_declaration(declaration, meshes_); !valid) {
    return valid.error();
  }
  forget_unheld();
  known_.emplace(hash, Known{declaration.options.data_path, TensorList::Watch(declaration.tensors)});
  return declaration.tensors;
}

/// Tensor after tensor, each with the hash of those before it: the text of all would be as large as they are.
std::size_t DeclarationPool::hash_of(const RankDeclaration& declaration) const {
  std::size_t hash = hash_(name_of(declaration.options.data_path));
  for (const TensorDeclaration& tensor : declaration.tensors) {
    interruption_point();
    hash = hash_(hex64(hash) + canonical_text(tensor));
  }
  return hash;
}

TensorList DeclarationPool::find(std::size_t hash, const RankDeclaration& declaration) const {
  const auto [first, last] = known_.equal_range(hash);
  for (auto entry = first; entry != last; ++entry) {
    const TensorList tensors = entry->second.tensors.list();
    if (entry->second.data_path == declaration.options.data_path && tensors == declaration.tensors) {
      return tensors;
    }
  }
  return {};
}

void DeclarationPool::forget_unheld() {
  if (known_.size() >= most_known_) {
    std::erase_if(known_, [](const auto& entry) { return entry.second.tensors.list().empty(); });
    most_known_ = 2 * known_.size() + 16;
  }
}

}  // namespace gradsync::plan
