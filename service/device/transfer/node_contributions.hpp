#pragma once
// What a node knows of the contributions to sums, its own ranks' at once, those of other nodes with the result of a
// block.

#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"

#include <cstdint>

namespace gradsync::device {

/// A bucket's sums that travel are unknown again, and what replicas of it had.
void forget_sums(LoadedPlan& plan, std::uint32_t bucket);

/// As on one node, of what is known from the ranks that are here: whether any of them contributed to the tensor, and
/// which sum of a part that is here as a whole is counted. Of every other part it is the first.
void find_contributors_here(LoadedPlan& plan, std::uint32_t tensor);

/// What is known by now of a sum of a part of elements.
[[nodiscard]] SumKnown known_of(const LoadedPlan& plan, std::uint32_t part, std::size_t sum);

/// A result came for a sum that travels. What nobody contributed to is looked at when the step is finished.
void note_result(LoadedPlan& plan, std::uint32_t part, std::size_t sum, bool contributed);

/// When all results of a bucket are here: ranks whose sum has no gradient, while another sum of the part has one, will
/// not take the same optimizer step.
void compare_contributions(LoadedPlan& plan, std::uint32_t bucket);

}  // namespace gradsync::device
