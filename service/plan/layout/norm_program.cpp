#include "plan/layout/norm_program.hpp"

#include "plan/interrupt.hpp"
#include "plan/layout/reduction.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

namespace gradsync::plan {

namespace {

/// In the order in which sums run: what many tensors share travels first and alone, what is spread most widely last.
enum class Level : std::uint8_t { Shards, Experts, Stages };

constexpr std::array<Level, 3> kLevels{Level::Shards, Level::Experts, Level::Stages};

constexpr std::int64_t kNumbersPerCell = 6;  // sum high and low, scale, maximum, non-finite, NaN

bool is_expert_axis(std::string_view name) { return name == "ep" || name.starts_with("ep_"); }

Level level_of(const Axis& axis, bool only) {
  if (only) {
    return axis.name == "pp" ? Level::Stages : Level::Experts;
  }
  return is_expert_axis(axis.name) ? Level::Experts : Level::Shards;
}

using Partition = std::vector<std::vector<std::int64_t>>;

class Program {
 public:
  explicit Program(Plan& plan) : plan_(plan) {}

  /// The sum that tensors with these roles go into first; −1: none.
  std::int32_t sum_for(const Mesh& mesh, const AxisRoles& roles) {
    std::array<std::vector<std::string>, kLevels.size()> axes;
    for (const auto& [indices, only] : {std::pair(&roles.sharding, false), std::pair(&roles.only, true)}) {
      for (const std::size_t axis : *indices) {
        axes[static_cast<std::size_t>(level_of(mesh.axes[axis], only))].push_back(mesh.axes[axis].name);
      }
    }
    std::int32_t next = -1;
    for (auto level = kLevels.rbegin(); level != kLevels.rend(); ++level) {
      std::vector<std::string>& names = axes[static_cast<std::size_t>(*level)];
      if (!names.empty()) {
        std::sort(names.begin(), names.end(), [&mesh](const std::string& a, const std::string& b) {
          return mesh.axis_index(a) < mesh.axis_index(b);
        });
        next = sum_of(collective_of(*level, mesh, names), next);
      }
    }
    return next;
  }

  /// Collectives in run order; their indices change, so sums are renumbered with them.
  void finish() {
    std::vector<std::uint32_t> order(plan_.scalar_collectives.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    std::stable_sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
      return levels_[a] < levels_[b];
    });
    std::vector<std::uint32_t> place(order.size());
    std::vector<ScalarCollective> sorted;
    for (std::uint32_t i = 0; i < order.size(); ++i) {
      place[order[i]] = i;
      sorted.push_back(std::move(plan_.scalar_collectives[order[i]]));
    }
    plan_.scalar_collectives = std::move(sorted);
    for (std::uint32_t i = 0; i < plan_.scalar_sums.size(); ++i) {
      ScalarSum& sum = plan_.scalar_sums[i];
      sum.collective = place[sum.collective];
      plan_.scalar_collectives[sum.collective].sums.push_back(i);
    }
    std::set<std::string_view> layers;
    for (const PlannedTensor& tensor : plan_.tensors) {
      interruption_point();
      if (tensor.declaration.layer) {
        layers.insert(*tensor.declaration.layer);
      }
    }
    const auto cells = static_cast<std::int64_t>(plan_.clip_groups.size() + layers.size());
    for (ScalarCollective& collective : plan_.scalar_collectives) {
      collective.length = static_cast<std::int64_t>(collective.sums.size()) * cells * kNumbersPerCell;
    }
  }

 private:
  std::uint32_t collective_of(Level level, const Mesh& mesh, const std::vector<std::string>& axes) {
    Partition groups = reduction_groups(mesh, axes);
    const auto [entry, fresh] =
        collectives_.emplace(std::pair(level, groups), static_cast<std::uint32_t>(plan_.scalar_collectives.size()));
    if (fresh) {
      levels_.push_back(level);
      plan_.scalar_collectives.push_back({mesh.name, axes, std::move(groups), {}, 0});
    }
    return entry->second;
  }

  std::int32_t sum_of(std::uint32_t collective, std::int32_t next) {
    const auto [entry, fresh] =
        sums_.emplace(std::pair(collective, next), static_cast<std::int32_t>(plan_.scalar_sums.size()));
    if (fresh) {
      plan_.scalar_sums.push_back({collective, next});
    }
    return entry->second;
  }

  Plan& plan_;
  std::vector<Level> levels_;  ///< by collective, in order of creation
  std::map<std::pair<Level, Partition>, std::uint32_t> collectives_;
  std::map<std::pair<std::uint32_t, std::int32_t>, std::int32_t> sums_;
};

NormGroup group_of(const Mesh& mesh, const AxisRoles& roles, std::int32_t sum) {
  NormGroup group;
  group.mesh = mesh.name;
  group.sum = sum;
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const auto in = [axis](const std::vector<std::size_t>& list) {
      return std::find(list.begin(), list.end(), axis) != list.end();
    };
    if (in(roles.sharding) || in(roles.only)) {
      group.axes.push_back(mesh.axes[axis].name);
    }
  }
  return group;
}

}  // namespace

void plan_norm_program(Plan& plan, const Merged& merged) {
  Program program(plan);
  constexpr std::uint32_t kUnknown = ~std::uint32_t{0};
  std::vector<std::uint32_t> group_of_placed(merged.placed.size(), kUnknown);
  std::map<std::tuple<std::string, std::vector<std::string>, std::int32_t>, std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < merged.tensors.size(); ++i) {
    interruption_point();
    const MergedTensor& tensor = merged.tensors[i];
    if (tensor.counted_as != i) {  // an earlier tensor, so its group is known; no sum is planned for the copy
      plan.tensors[i].norm_group = plan.tensors[tensor.counted_as].norm_group;
      continue;
    }
    std::uint32_t& number = group_of_placed[tensor.placed];
    if (number == kUnknown) {
      const AxisRoles& roles = merged.placed_of(tensor).roles;
      const Mesh& mesh = plan.meshes[mesh_index(plan.meshes, plan.tensors[i].declaration.mesh)];
      NormGroup group = group_of(mesh, roles, program.sum_for(mesh, roles));
      const auto [entry, fresh] = numbers.emplace(
          std::tuple(group.mesh, group.axes, group.sum), static_cast<std::uint32_t>(plan.norm_groups.size())
      );
      if (fresh) {
        plan.norm_groups.push_back(std::move(group));
      }
      number = entry->second;
    }
    plan.tensors[i].norm_group = number;
    plan.norm_groups[number].tensors.push_back(i);
  }
  program.finish();
}

}  // namespace gradsync::plan
