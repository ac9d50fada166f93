#pragma once
// The declarations of one job, of which ranks that declare alike hold one list of tensors. It is hashed, compared,
// checked and kept once. Pure, but for what it has seen; not synchronised.

#include "base/error.hpp"
#include "base/text/hash.hpp"
#include "plan/declaration.hpp"
#include "plan/mesh/mesh.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace gradsync::plan {

class DeclarationPool {
 public:
  using Hash = std::function<std::size_t(std::string_view)>;

  /// Ranks choose what is hashed. That two lists have one hash only makes them be compared.
  explicit DeclarationPool(std::vector<Mesh> meshes, Hash hash = KeyedHash{});

  /// Checks a declaration as `validate_declaration` does. Returns the tensors to hold: those of an earlier declaration
  /// that are equal and still held by somebody, else its own, which later ones may be given.
  [[nodiscard]] Result<TensorList> admit(const RankDeclaration& declaration);

 private:
  /// A list that was found valid. It is not kept alive by that.
  struct Known {
    DataPath data_path;
    TensorList::Watch tensors;
  };

  [[nodiscard]] std::size_t hash_of(const RankDeclaration& declaration) const;
  [[nodiscard]] TensorList find(std::size_t hash, const RankDeclaration& declaration) const;
  void forget_unheld();

  std::vector<Mesh> meshes_;
  Hash hash_;
  std::unordered_multimap<std::size_t, Known> known_;
  std::size_t most_known_ = 0;  ///< with more, it is time to look for those that nobody holds any more
};

}  // namespace gradsync::plan
