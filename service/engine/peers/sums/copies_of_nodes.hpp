#pragma once
// What the rows of boxes that lie on several nodes say when they are read together, as one daemon would read them.
// Pure.

#include "engine/peers/peer_message.hpp"
#include "plan/plan.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace gradsync::engine {

struct JudgedCopies {
  std::vector<device::NonfiniteFinding> nonfinite;  ///< what copies of other nodes have more than the owner counted
  std::vector<device::DivergenceFinding> divergence;
  std::vector<device::MissingFinding> missing;
  std::vector<PeerRows::Row> uncounted;  ///< boxes whose owner has no gradient, with the row that counts for them
  std::vector<std::pair<std::uint32_t, std::int64_t>> read;  ///< tensors and ranks of all rows
  bool sums_differ = false;                                  ///< some rows are of equal gradients, and are not the same
};

/// `rows` of whole boxes, in any order, as `belongs` takes them. A tied copy is compared with what is counted for it,
/// where that is here too. On data path arena a rank without a gradient diverges from ranks that have one, as on one
/// node, because it gets zeros.
[[nodiscard]] JudgedCopies judge_copies(
    const plan::Plan& plan, const std::vector<NodeNumber>& node_of_rank, std::vector<PeerRows::Row> rows
);

/// Adds what was judged of other boxes.
void add_round(JudgedCopies round, JudgedCopies& before);

/// Adds what was judged to what the nodes found. Of copies that were read it takes the place of what a node found,
/// which compared them with its own alone. A tensor that is absent on all nodes is not missing.
void add_judged(JudgedCopies judged, NodeFindings& all);

/// Adds the rows that no node has counted: to the whole, and to clip group and layer of their tensors.
void count_rows(const plan::Plan& plan, const std::vector<PeerRows::Row>& rows, NodeCells& cells);

}  // namespace gradsync::engine
