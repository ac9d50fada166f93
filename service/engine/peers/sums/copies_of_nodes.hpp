#pragma once
// What the rows of boxes that lie on several nodes say when they are read together, as one daemon would read them.
// Pure.

#include "engine/peers/peer_message.hpp"
#include "plan/plan.hpp"

#include <vector>

namespace gradsync::engine {

struct JudgedCopies {
  std::vector<device::DivergenceFinding> divergence;
  std::vector<device::MissingFinding> missing;
  std::vector<PeerRows::Row> uncounted;  ///< boxes whose owner has no gradient, with the row that counts for them
  bool sums_differ = false;              ///< some rows are of equal gradients, and are not the same
};

/// `rows` of whole boxes, in any order, as `belongs` takes them. A tied copy is compared with what is counted for it,
/// where that is here too.
[[nodiscard]] JudgedCopies judge_copies(
    const plan::Plan& plan, const std::vector<NodeNumber>& node_of_rank, std::vector<PeerRows::Row> rows
);

/// Adds the rows that no node has counted: to the whole, and to clip group and layer of their tensors.
void count_rows(const plan::Plan& plan, const std::vector<PeerRows::Row>& rows, NodeCells& cells);

}  // namespace gradsync::engine
