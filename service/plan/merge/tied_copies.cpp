#include "plan/merge/tied_copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace gradsync::plan {

namespace {

/// By number, those with elements. For tensors that were checked: all holders of a number hold the same.
std::vector<std::optional<Box>> boxes_of(Declarations by_rank, const Merged& merged, const MergedTensor& tensor) {
  const PlacedRanks& placed = merged.placed_of(tensor);
  std::vector<std::optional<Box>> boxes(static_cast<std::size_t>(placed.boxes));
  for (const Holding& holding : tensor.holdings) {
    if (holding.elements != 0) {
      boxes[holding.box] =
          box_of(declaration_of(by_rank, holding.rank, holding.row), placed, placed.ranks[holding.rank]);
    }
  }
  return boxes;
}

/// The first that holds a box and gave a fingerprint of its weights, by box.
std::vector<const Holding*> fingerprinted(Declarations by_rank, const MergedTensor& tensor) {
  std::vector<const Holding*> first;
  for (const Holding& holding : tensor.holdings) {
    if (weight_fingerprint_of(by_rank, holding) != nullptr) {
      first.resize(std::max<std::size_t>(first.size(), std::size_t{holding.box} + 1), nullptr);
      first[holding.box] = first[holding.box] != nullptr ? first[holding.box] : &holding;
    }
  }
  return first;
}

}  // namespace

std::vector<std::int32_t> equal_boxes(
    Declarations by_rank, const Merged& merged, const MergedTensor& counted, const MergedTensor& copy
) {
  std::map<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>, std::int32_t> numbers;
  const std::vector<std::optional<Box>> there = boxes_of(by_rank, merged, counted);
  for (std::size_t box = 0; box < there.size(); ++box) {
    if (there[box]) {
      numbers.emplace(std::pair(there[box]->offset, there[box]->extent), static_cast<std::int32_t>(box));
    }
  }
  std::vector<std::int32_t> equal;
  for (const std::optional<Box>& box : boxes_of(by_rank, merged, copy)) {
    const auto found = box ? numbers.find(std::pair(box->offset, box->extent)) : numbers.end();
    equal.push_back(found == numbers.end() ? -1 : found->second);
  }
  return equal;
}

Result<void> compare_tied_weights(Declarations by_rank, const MergedTensor& counted, const MergedTensor& copy) {
  const std::vector<const Holding*> first = fingerprinted(by_rank, counted);
  for (const Holding& holding : copy.holdings) {
    const std::string* own = weight_fingerprint_of(by_rank, holding);
    const std::int32_t box = copy.counted_boxes[holding.box];
    const Holding* other = box >= 0 && static_cast<std::size_t>(box) < first.size() ? first[box] : nullptr;
    if (own == nullptr || other == nullptr || *weight_fingerprint_of(by_rank, *other) == *own) {
      continue;
    }
    const std::string& name = declaration_of(by_rank, holding.rank, holding.row).name;
    Error error = make_error(
        ErrorCode::WeightsDiverged,
        fmt::format(
            "the weights of the tied tensors '{}' on rank {} and '{}' on rank {} differ",
            declaration_of(by_rank, other->rank, other->row).name,
            other->rank,
            name,
            holding.rank
        ),
        "tied tensors are one weight: start all copies from the same values, or do not declare them tied"
    );
    error.tensor = name;
    error.ranks = {other->rank, holding.rank};
    return error;
  }
  return {};
}

}  // namespace gradsync::plan
