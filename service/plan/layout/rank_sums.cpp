#include "plan/layout/rank_sums.hpp"

#include "plan/interrupt.hpp"
#include "plan/merge/merge_refusals.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace gradsync::plan {

namespace {

/// A holder in the sum of its group, and what it gets of the result.
struct Contribution {
  SumMember member;
  std::uint32_t box = 0;
};

using Groups = std::vector<std::vector<Contribution>>;  ///< by lowest rank; members by rank, then copy

/// The sums of each box, appended to `all`. Returns where they begin: box b has that number + b.
std::uint32_t add_sums(const Groups& groups, std::int64_t boxes, std::vector<std::vector<RankSum>>& all) {
  const auto base = static_cast<std::uint32_t>(all.size());
  all.resize(all.size() + static_cast<std::size_t>(boxes));
  for (const std::vector<Contribution>& group : groups) {
    std::map<std::uint32_t, RankSum> of_box;
    for (const Contribution& contribution : group) {
      of_box[contribution.box].destinations.push_back(contribution.member);
    }
    for (auto& [box, sum] : of_box) {
      for (const Contribution& contribution : group) {
        sum.sources.push_back(contribution.member);
      }
      all[base + box].push_back(std::move(sum));
    }
  }
  return base;
}

Groups sorted_groups(std::map<std::vector<std::int64_t>, std::vector<Contribution>> found) {
  Groups groups;
  for (auto& [key, group] : found) {
    std::sort(group.begin(), group.end(), [](const Contribution& a, const Contribution& b) {
      return std::tie(a.member.rank, a.member.copy) < std::tie(b.member.rank, b.member.copy);
    });
    groups.push_back(std::move(group));
  }
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return a.front().member.rank < b.front().member.rank;
  });
  return groups;
}

Groups groups_of(const PlacedRanks& placed) {
  std::map<std::vector<std::int64_t>, std::vector<Contribution>> found;
  for (std::uint32_t rank = 0; rank < placed.ranks.size(); ++rank) {
    if (placed.ranks[rank].holds) {
      found[{placed.group_of[rank]}].push_back({{rank, 0}, placed.ranks[rank].box});
    }
  }
  return sorted_groups(std::move(found));
}

/// A tensor and its tied copies.
struct Tied {
  std::vector<const MergedTensor*> copies;  ///< the first is the counted one
  std::vector<const TensorDeclaration*> declarations;
};

bool one_coordinate(const Placement& placement) {
  const Only* only = std::get_if<Only>(&placement.kind);
  return only != nullptr && only->at.size() == 1;
}

/// Copies are summed and divided as one: they are placed alike but for the one stage that holds each.
bool reduced_alike(const TensorDeclaration& first, const TensorDeclaration& other) {
  const auto alike = [](const Placement& a, const Placement& b) {
    return a == b || (a.axes == b.axes && one_coordinate(a) && one_coordinate(b));
  };
  return first.mesh == other.mesh && first.divisor == other.divisor && first.split_order == other.split_order &&
         std::equal(
             first.placements.begin(), first.placements.end(), other.placements.begin(), other.placements.end(), alike
         );
}

/// Every part of the copy that is not empty is the part of that number of the counted tensor.
bool cut_alike(const MergedTensor& copy) {
  return std::all_of(copy.holdings.begin(), copy.holdings.end(), [&copy](const Holding& holding) {
    return holding.elements == 0 || copy.counted_boxes[holding.box] == static_cast<std::int32_t>(holding.box);
  });
}

/// Groups the holders that are summed: those whose coordinates agree on every axis, except the reduced axes and the one
/// along which copies lie apart.
Groups groups_of(const Tied& tied, const Merged& merged, const Mesh& mesh) {
  std::vector<bool> joined(mesh.axes.size(), false);
  const auto join = [&](const std::vector<std::string>& axes) {
    for (const std::string& axis : axes) {
      joined[*mesh.axis_index(axis)] = true;
    }
  };
  for (const Stage& stage : merged.placed_of(*tied.copies.front()).stages) {
    join(stage.axes);
  }
  for (const TensorDeclaration* declaration : tied.declarations) {
    for (std::size_t k = 0; k < declaration->placements.size(); ++k) {
      if (declaration->placements[k] != tied.declarations.front()->placements[k]) {
        join(declaration->placements[k].axes);
      }
    }
  }
  std::map<std::vector<std::int64_t>, std::vector<Contribution>> found;
  for (std::uint32_t copy = 0; copy < tied.copies.size(); ++copy) {
    for (const Holding& holding : tied.copies[copy]->holdings) {
      std::vector<std::int64_t> key = mesh.coordinates(holding.rank);
      for (std::size_t axis = 0; axis < key.size(); ++axis) {
        key[axis] = joined[axis] ? 0 : key[axis];
      }
      found[key].push_back({{holding.rank, copy}, holding.box});
    }
  }
  return sorted_groups(std::move(found));
}

class Sums {
 public:
  Sums(Plan& plan, Declarations by_rank, const Merged& merged)
      : plan_(plan), by_rank_(by_rank), merged_(merged), of_placed_(merged.placed.size()) {}

  Result<void> add() {
    std::map<std::uint32_t, std::vector<std::uint32_t>> copies;
    for (std::uint32_t i = 0; i < merged_.tensors.size(); ++i) {
      interruption_point();
      if (merged_.tensors[i].counted_as != i) {
        copies[merged_.tensors[i].counted_as].push_back(i);
      }
    }
    for (std::uint32_t i = 0; i < merged_.tensors.size(); ++i) {
      interruption_point();
      const MergedTensor& tensor = merged_.tensors[i];
      if (tensor.counted_as != i) {
        continue;
      }
      std::uint32_t base = 0;
      if (const auto tied = copies.find(i); tied != copies.end()) {
        const Result<std::uint32_t> added = add_tied(i, tied->second);
        if (!added) {
          return added.error();
        }
        base = *added;
      } else {
        std::optional<std::uint32_t>& known = of_placed_[tensor.placed];
        if (!known) {
          const PlacedRanks& placed = merged_.placed_of(tensor);
          known = add_sums(groups_of(placed), placed.boxes, plan_.sums);
        }
        base = *known;
      }
      add_parts(i, base);
    }
    return {};
  }

 private:
  Result<std::uint32_t> add_tied(std::uint32_t index, const std::vector<std::uint32_t>& copies) {
    Tied tied;
    for (const std::uint32_t copy : copies) {
      const MergedTensor& other = merged_.tensors[copy];
      const TensorDeclaration& declaration = declaration_of(by_rank_, other.rank, other.row);
      if (!reduced_alike(plan_.tensors[index].declaration, declaration) || !cut_alike(other)) {
        return tied_reduced_otherwise(plan_.tensors[index].declaration, other, declaration);
      }
    }
    tied.copies.push_back(&merged_.tensors[index]);
    tied.declarations.push_back(&plan_.tensors[index].declaration);
    for (const std::uint32_t copy : copies) {
      tied.copies.push_back(&merged_.tensors[copy]);
      tied.declarations.push_back(&plan_.tensors[copy].declaration);
    }
    plan_.tensors[index].copies = copies;
    const Mesh& mesh = plan_.meshes[mesh_index(plan_.meshes, plan_.tensors[index].declaration.mesh)];
    return add_sums(groups_of(tied, merged_, mesh), merged_.placed_of(*tied.copies.front()).boxes, plan_.sums);
  }

  void add_parts(std::uint32_t index, std::uint32_t base) {
    const MergedTensor& tensor = merged_.tensors[index];
    const PlacedRanks& placed = merged_.placed_of(tensor);
    std::vector<PlannedPart>& parts = plan_.tensors[index].parts;
    std::vector<const Holding*> holder(static_cast<std::size_t>(placed.boxes), nullptr);
    for (const Holding& holding : tensor.holdings) {
      holder[holding.box] = holder[holding.box] == nullptr ? &holding : holder[holding.box];
    }
    for (const Holding* holding : holder) {
      if (holding != nullptr && holding->elements != 0) {
        const TensorDeclaration& declaration = declaration_of(by_rank_, holding->rank, holding->row);
        const RankPlace& place = placed.ranks[holding->rank];
        parts.push_back(part_of(input_box_of(declaration, placed, place), box_of(declaration, placed, place)));
        parts.back().box = holding->box;
        parts.back().sums = base + holding->box;
      }
    }
    if (parts.empty()) {  // without elements; a rank still has to say whether it got a gradient
      parts.push_back({});
      parts.back().box = tensor.holdings.front().box;
      parts.back().sums = base + parts.back().box;
    }
  }

  Plan& plan_;
  Declarations by_rank_;
  const Merged& merged_;
  std::vector<std::optional<std::uint32_t>> of_placed_;
};

}  // namespace

Result<void> plan_sums(Plan& plan, Declarations by_rank, const Merged& merged) {
  return Sums(plan, by_rank, merged).add();
}

PlannedPart part_of(const Box& whole, const Box& part) {
  PlannedPart lies;
  lies.elements = static_cast<std::uint64_t>(numel_of(part.extent));
  lies.run = 1;
  std::uint64_t distance = 1;  // of neighbours along the dim, in elements
  bool together = true;        // everything inside this dim is in one run
  for (std::size_t d = whole.extent.size(); d-- > 0;) {
    const auto extent = static_cast<std::uint64_t>(part.extent[d]);
    const auto outer = static_cast<std::uint64_t>(whole.extent[d]);
    lies.first += static_cast<std::uint64_t>(part.offset[d] - whole.offset[d]) * distance;
    if (together) {
      lies.run *= extent;
      together = extent == outer;
    } else if (extent != 1) {
      Stride* inner = lies.strides.empty() ? nullptr : &lies.strides.back();
      if (inner != nullptr && inner->distance * inner->count == distance) {
        inner->count *= extent;
      } else {
        lies.strides.push_back({extent, distance});
      }
    }
    distance *= outer;
  }
  return lies;
}

}  // namespace gradsync::plan
