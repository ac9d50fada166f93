#pragma once
// What a node says of its copies in a step: one hash for each box, and of these one for each class of boxes. Pure.
//
// Equal hashes mean equal gradients. Different ones need not mean different gradients: sums that were taken in another
// order differ in their last bits. Once the coordinator has seen that (`PeerDecision::sums_differ`), hashes leave sums
// out, and rest on maxima, counts and fingerprints.

#include "device/stats/stats_plan.hpp"

#include <cstdint>
#include <span>

namespace gradsync::device {

/// `rows`: those of the node's ranks that hold the box or a tied copy of it, by tensor and rank; they are overwritten.
/// `rank`: that of the first. Equal rows count once, so that a node with several copies has the hash of a node with
/// one. Where copies on the node differ, no other node has its hash: which of them most ranks have is known to the
/// nodes together. 0: none of them has a gradient.
[[nodiscard]] std::uint64_t hash_of_box(std::span<StatsRow> rows, std::uint32_t rank, HashSums sums);

/// The hash of a box whose copies on a node are unlike each other. No other node has it: `rank` is one of its own.
[[nodiscard]] std::uint64_t hash_of_unlike(std::uint64_t box, std::uint32_t rank);

/// The hash of a box that ranks of this node hold without a gradient, while a tied copy has one, on this rank first. No
/// other node has that hash, so that rows are asked for: whether the copy is right is known to the nodes together. On
/// data path arena: the sum that the norm counts is here, without a gradient, and another sum of the part has one.
[[nodiscard]] std::uint64_t hash_of_copies_alone(std::uint32_t rank);

/// Whether a node that holds the box says by this hash that none of its ranks has a gradient of it.
[[nodiscard]] bool is_uncounted(std::uint64_t hash);

/// The hash over those of its boxes, in their order.
[[nodiscard]] std::uint64_t hash_of_class(std::span<const std::uint64_t> boxes);

}  // namespace gradsync::device
