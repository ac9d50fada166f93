#pragma once
// The tensors of a job whose gradients travel, and what their sums have to be. All values are small integers, so that
// every order of additions gives the same bits, and differ from attempt to attempt, so that what is left of another
// attempt would make another sum.

#include "engine/report/report.hpp"
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
  std::uint64_t copies = 0;  ///< which values of copies, the same on all ranks of a node where training is right
  bool nan = false;          ///< one of its values is no number
  bool compared = false;     ///< the daemon says that it compares copies
};

/// What all ranks gave, by rank.
using Gifts = std::map<std::int64_t, Gift>;

class Gradients {
 public:
  /// `copies`: the ranks of a node hold parts, and copies, of some as well.
  Gradients(std::int64_t nodes, std::int64_t ranks_per_node, bool copies);

  [[nodiscard]] std::vector<plan::Mesh> meshes() const;
  [[nodiscard]] plan::RankDeclaration declaration(std::int64_t rank) const;

  /// Room for all of them, and for what sync scatters.
  [[nodiscard]] std::uint64_t arena_bytes(std::int64_t rank) const;

  /// Which tensors a rank may leave unused.
  [[nodiscard]] std::uint32_t all_unused() const;

  void write(std::int64_t rank, const Gift& gift, const plan::ArenaLayout& layout, std::byte* arena) const;

  /// By row of the rank's declaration.
  [[nodiscard]] std::vector<std::uint32_t> rows_unused(std::int64_t rank, const Gift& gift) const;

  /// The sums of a tensor, as a whole, all copies included; nothing: no rank contributed to it.
  using Sums = std::vector<std::optional<std::vector<float>>>;
  [[nodiscard]] Sums sums_of(const Gifts& gifts) const;

  /// The exact one.
  [[nodiscard]] double norm_of(const Sums& sums) const;

  /// What is to be found in them, in the words of `findings_of`.
  [[nodiscard]] std::string findings_of(const Gifts& gifts, const Sums& sums) const;

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
    bool parts = false;            ///< a rank gives the part only that it gets
    bool copies = false;           ///< of equal bits
  };

  [[nodiscard]] bool holds(std::int64_t rank, const Tensor& tensor) const;
  [[nodiscard]] std::int64_t part_of(std::int64_t rank, const Tensor& tensor) const;
  void find_copies(const Tensor& tensor, const std::vector<float>& sum, std::string& found) const;

  std::int64_t nodes_;
  std::int64_t per_node_;
  std::vector<Tensor> tensors_;
};

/// Ranks whose values were not finite, by tensor, and those whose copies differ, with the suspects.
[[nodiscard]] std::string findings_of(const engine::StepReport& report);

}  // namespace gradsync::sim
