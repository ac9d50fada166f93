#include "plan/layout/reduction.hpp"

#include "base/assert.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

namespace gradsync::plan {

namespace {

constexpr std::array<std::string_view, 5> kConventionalOrder{"tp", "ep", "cp", "dp_shard", "dp_replicate"};

std::size_t index_of(const Mesh& mesh, std::string_view axis) {
  const auto index = mesh.axis_index(axis);
  GRADSYNC_ASSERT(index.has_value(), "a validated placement names axes of its mesh");
  return *index;
}

/// Sorts before all axes with a higher value. Axes that the order does not name follow in mesh order.
std::size_t position_of(const Mesh& mesh, std::string_view axis) {
  const auto find = [axis](const auto& order) -> std::size_t {
    return static_cast<std::size_t>(std::find(order.begin(), order.end(), axis) - order.begin());
  };
  const std::size_t named = mesh.sync_order.empty() ? kConventionalOrder.size() : mesh.sync_order.size();
  const std::size_t position = mesh.sync_order.empty() ? find(kConventionalOrder) : find(mesh.sync_order);
  return position < named ? position : named + index_of(mesh, axis);
}

}  // namespace

std::size_t sync_position(const Placement& placement, const Mesh& mesh) {
  std::size_t first = std::numeric_limits<std::size_t>::max();
  for (const std::string& axis : placement.axes) {
    if (mesh.axes[index_of(mesh, axis)].size > 1) {
      first = std::min(first, position_of(mesh, axis));
    }
  }
  return first;
}

std::vector<Stage> stages_of(const TensorDeclaration& tensor, const Mesh& mesh) {
  std::vector<std::pair<std::size_t, Stage>> placed;
  for (const Placement& placement : tensor.placements) {
    const Partial* partial = std::get_if<Partial>(&placement.kind);
    if (partial == nullptr) {
      continue;
    }
    Stage stage;
    stage.op = partial->op;
    stage.scatters = partial->to_shard.has_value();
    for (const std::string& axis : placement.axes) {
      const std::int64_t size = mesh.axes[index_of(mesh, axis)].size;
      if (size > 1) {
        stage.axes.push_back(axis);
        stage.size *= size;
      }
    }
    if (!stage.axes.empty()) {
      placed.emplace_back(sync_position(placement, mesh), std::move(stage));
    }
  }
  std::stable_sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Stage> stages;
  for (auto& [position, stage] : placed) {
    stages.push_back(std::move(stage));
  }
  return stages;
}

std::vector<std::string> reduced_axes(const TensorDeclaration& tensor, const Mesh& mesh) {
  std::vector<std::string> axes;
  for (const Stage& stage : stages_of(tensor, mesh)) {
    axes.insert(axes.end(), stage.axes.begin(), stage.axes.end());
  }
  std::sort(axes.begin(), axes.end(), [&mesh](const std::string& a, const std::string& b) {
    return position_of(mesh, a) < position_of(mesh, b);
  });
  return axes;
}

double divisor_of(const TensorDeclaration& tensor, const Mesh& mesh) {
  if (tensor.divisor) {
    return *tensor.divisor;
  }
  std::int64_t divisor = 1;
  for (const Stage& stage : stages_of(tensor, mesh)) {
    divisor *= stage.op == ReduceOp::Mean ? stage.size : 1;
  }
  return static_cast<double>(divisor);
}

std::vector<std::vector<std::int64_t>> reduction_groups(const Mesh& mesh, const std::vector<std::string>& axes) {
  std::vector<bool> reduced(mesh.axes.size(), false);
  std::int64_t groups = mesh.size();
  for (const std::string& axis : axes) {
    const std::size_t index = index_of(mesh, axis);
    reduced[index] = true;
    groups /= mesh.axes[index].size;
  }
  std::vector<std::vector<std::int64_t>> members(static_cast<std::size_t>(groups));
  for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<std::int64_t> at = mesh.coordinates(rank);
    // The coordinates of the other axes, row-major like the ranks: groups come out ordered by their lowest rank.
    std::int64_t group = 0;
    for (std::size_t k = 0; k < mesh.axes.size(); ++k) {
      group = reduced[k] ? group : group * mesh.axes[k].size + at[k];
    }
    members[static_cast<std::size_t>(group)].push_back(rank);
  }
  return members;
}

}  // namespace gradsync::plan
