#include "plan/mesh/mesh.hpp"

#include "base/assert.hpp"
#include "base/text/hash.hpp"
#include "base/text/text.hpp"
#include "plan/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

namespace gradsync::plan {

namespace {

Result<void> check_name(const std::string& path, const char* what, const std::string& name) {
  if (name.empty()) {
    return invalid_params(path, fmt::format("{} is empty", what), fmt::format("give the {} a name", what));
  }
  if (name.size() > kMaxNameBytes) {
    return invalid_params(
        path,
        fmt::format("{} has {} bytes, at most {} are allowed", what, name.size(), kMaxNameBytes),
        "use a shorter name"
    );
  }
  return {};
}

std::vector<std::string> names_of(const Mesh& mesh) {
  std::vector<std::string> names;
  names.reserve(mesh.axes.size());
  for (const Axis& axis : mesh.axes) {
    names.push_back(axis.name);
  }
  return names;
}

Result<void> check_axes(const Mesh& mesh, const std::string& path, std::int64_t world_size) {
  std::unordered_set<std::string_view, KeyedHash> seen;
  std::int64_t ranks = 1;
  for (std::size_t k = 0; k < mesh.axes.size(); ++k) {
    const Axis& axis = mesh.axes[k];
    const std::string axis_path = fmt::format("{}.axes[{}]", path, k);
    if (const auto named = check_name(axis_path + ".name", "axis name", axis.name); !named) {
      return named.error();
    }
    if (!seen.insert(axis.name).second) {
      return invalid_params(
          axis_path + ".name",
          fmt::format("axis '{}' appears twice in mesh '{}'", axis.name, mesh.name),
          "name every axis of a mesh differently"
      );
    }
    if (axis.size < 1) {
      return invalid_params(
          axis_path + ".size",
          fmt::format("axis '{}' of mesh '{}' has size {}, at least 1 is expected", axis.name, mesh.name, axis.size),
          "an axis that does nothing has size 1"
      );
    }
    // Every factor is at least 1, so the product never shrinks: beyond world_size it is wrong whatever follows.
    if (axis.size > world_size / ranks) {
      return invalid_params(
          path + ".axes",
          fmt::format("mesh '{}' covers more than the {} ranks of the job", mesh.name, world_size),
          "the product of a mesh's axis sizes must be the world size"
      );
    }
    ranks *= axis.size;
  }
  if (ranks != world_size) {
    return invalid_params(
        path + ".axes",
        fmt::format("mesh '{}' covers {} ranks, the job has {}", mesh.name, ranks, world_size),
        "the product of a mesh's axis sizes must be the world size"
    );
  }
  return {};
}

Result<void> check_sync_order(const Mesh& mesh, const std::string& path) {
  if (mesh.sync_order.empty()) {
    return {};
  }
  std::unordered_set<std::string_view, KeyedHash> seen;
  for (std::size_t k = 0; k < mesh.sync_order.size(); ++k) {
    const std::string& name = mesh.sync_order[k];
    const std::string order_path = fmt::format("{}.sync_order[{}]", path, k);
    if (!mesh.axis_index(name)) {
      const std::string nearest = nearest_name(name, names_of(mesh));
      return invalid_params(
          order_path,
          fmt::format("axis '{}' is not in mesh '{}' ({})", name, mesh.name, mesh.axis_names()),
          nearest.empty() ? "name axes of this mesh" : fmt::format("did you mean '{}'?", nearest)
      );
    }
    if (!seen.insert(name).second) {
      return invalid_params(
          order_path, fmt::format("axis '{}' appears twice in sync_order", name), "name every axis once"
      );
    }
  }
  for (const Axis& axis : mesh.axes) {
    if (axis.size > 1 && !seen.contains(axis.name)) {
      return invalid_params(
          path + ".sync_order",
          fmt::format("sync_order of mesh '{}' does not name axis '{}' of size {}", mesh.name, axis.name, axis.size),
          "name every axis of size > 1, or leave sync_order empty for the conventional order (tp first)"
      );
    }
  }
  return {};
}

}  // namespace

std::int64_t Mesh::size() const {
  std::int64_t product = 1;
  for (const Axis& axis : axes) {
    product *= axis.size;
  }
  return product;
}

std::optional<std::size_t> Mesh::axis_index(std::string_view axis) const {
  for (std::size_t k = 0; k < axes.size(); ++k) {
    if (axes[k].name == axis) {
      return k;
    }
  }
  return std::nullopt;
}

std::string Mesh::axis_names() const { return fmt::format("{}", fmt::join(names_of(*this), ", ")); }

std::vector<std::int64_t> Mesh::coordinates(std::int64_t rank) const {
  std::vector<std::int64_t> at(axes.size());
  for (std::size_t k = axes.size(); k-- > 0;) {
    at[k] = rank % axes[k].size;
    rank /= axes[k].size;
  }
  return at;
}

std::size_t mesh_index(const std::vector<Mesh>& meshes, std::string_view name) {
  const auto found = std::find_if(meshes.begin(), meshes.end(), [name](const Mesh& mesh) { return mesh.name == name; });
  GRADSYNC_ASSERT(found != meshes.end(), "a validated tensor names a mesh of the job");
  return static_cast<std::size_t>(found - meshes.begin());
}

Result<void> validate_meshes(const std::vector<Mesh>& meshes, std::int64_t world_size) {
  if (meshes.empty()) {
    return invalid_params("meshes", "the job has no mesh", "give at least one, for example {\"dp\": world_size}");
  }
  std::unordered_set<std::string_view, KeyedHash> seen;
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    const Mesh& mesh = meshes[i];
    const std::string path = fmt::format("meshes[{}]", i);
    if (const auto named = check_name(path + ".name", "mesh name", mesh.name); !named) {
      return named.error();
    }
    if (!seen.insert(mesh.name).second) {
      return invalid_params(
          path + ".name", fmt::format("mesh '{}' is given twice", mesh.name), "name every mesh differently"
      );
    }
    if (const auto axes = check_axes(mesh, path, world_size); !axes) {
      return axes.error();
    }
    if (const auto order = check_sync_order(mesh, path); !order) {
      return order.error();
    }
  }
  return {};
}

}  // namespace gradsync::plan
