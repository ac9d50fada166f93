#pragma once
// The boxes that a node compares with other nodes, and where the rows of its ranks for them begin.

#include "device/stats/stats_plan.hpp"

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

namespace gradsync::device {

/// The begin of the rows of each box that ties, classes or `elsewhere` name; nothing: no rank here holds it.
using BoxBegins = std::map<StatsBox, std::optional<std::size_t>>;

struct BoxPlace {
  StatsBox box;
  std::size_t begin = 0;  ///< of its rows
};

/// A box of a class, and what is here of it: itself, unless other nodes alone hold it, then its tied copies.
struct ComparedBox {
  StatsBox box;
  std::vector<BoxPlace> places;  ///< by tensor and box; at least one

  [[nodiscard]] bool is_here() const { return places.front().box == box; }
};

using ComparedClass = std::vector<ComparedBox>;  ///< by box

/// All boxes that the plan names beside its holders, with no begin yet.
[[nodiscard]] BoxBegins named_boxes(const StatsPlan& layout);

/// The classes of the plan. Throws DeviceError for boxes that do not ascend or of which nothing is here.
[[nodiscard]] std::vector<ComparedClass> compared_classes(const StatsPlan& layout, const BoxBegins& begins);

}  // namespace gradsync::device
