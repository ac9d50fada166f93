#pragma once
// The tensors of a job whose gradients travel, and what their sums have to be. All values are small integers, so that
// every order of additions gives the same bits, and differ from attempt to attempt, so that what is left of another
// attempt would make another sum.

#include "plan/declaration.hpp"
#include "plan/mesh/mesh.hpp"
#include "plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::sim {

/// What a rank gives in an attempt.
struct Gift {
  std::uint64_t values = 0;  ///< which ones
  std::uint32_t unused = 0;  ///< a bit per tensor of the job
};

/// What all ranks gave, by rank.
using Gifts = std::map<std::int64_t, Gift>;

class Gradients {
 public:
  Gradients(std::int64_t nodes, std::int64_t ranks_per_node);

  [[nodiscard]] std::vector<plan::Mesh> meshes() const;
  [[nodiscard]] plan::RankDeclaration declaration(std::int64_t rank) const;

  /// Room for all of them, and for what sync scatters.
  [[nodiscard]] std::uint64_t arena_bytes(std::int64_t rank) const;

  /// Which tensors a rank may leave unused.
  [[nodiscard]] std::uint32_t all_unused() const { return (1u << tensors_.size()) - 1; }

  void write(std::int64_t rank, const Gift& gift, const plan::ArenaLayout& layout, std::byte* arena) const;

  /// By row of the rank's declaration.
  [[nodiscard]] std::vector<std::uint32_t> rows_unused(std::int64_t rank, const Gift& gift) const;

  /// The sums of a tensor, as a whole; nothing: no rank contributed to it.
  using Sums = std::vector<std::optional<std::vector<float>>>;
  [[nodiscard]] Sums sums_of(const Gifts& gifts) const;

  /// The exact one.
  [[nodiscard]] double norm_of(const Sums& sums) const;

  /// Empty, or which element of the rank is not its sum, multiplied.
  [[nodiscard]] std::string difference(
      std::int64_t rank, const Sums& sums, float multiplier, const plan::ArenaLayout& layout, const std::byte* arena
  ) const;

 private:
  static constexpr std::int64_t kAnyNode = -1;

  struct Tensor {
    std::string name;
    std::int64_t elements = 0;
    std::string mesh;
    std::vector<plan::Placement> placements;
    bool mean = false;
    std::int64_t cut = 1;          ///< into how many parts, by rank of the world or of the node
    std::int64_t only = kAnyNode;  ///< on this node alone
  };

  [[nodiscard]] bool holds(std::int64_t rank, const Tensor& tensor) const;

  std::int64_t nodes_;
  std::int64_t per_node_;
  std::vector<Tensor> tensors_;
};

}  // namespace gradsync::sim
