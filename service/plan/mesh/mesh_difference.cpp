#include "plan/mesh/mesh_difference.hpp"

#include "plan/check/words.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::plan {

namespace {

template <typename Named>
std::vector<std::string> names_of(const std::vector<Named>& list) {
  std::vector<std::string> names;
  for (const Named& named : list) {
    names.push_back(named.name);
  }
  return names;
}

std::optional<MeshDifference> difference_of(const Mesh& first, const Mesh& other, const std::string& path) {
  const std::string mesh = fmt::format("mesh '{}'", other.name);
  if (const auto before = names_of(first.axes), given = names_of(other.axes); before != given) {
    return MeshDifference{path + ".axes", "the list of axes of " + mesh, words_of(before), words_of(given)};
  }
  for (std::size_t k = 0; k < first.axes.size(); ++k) {
    if (first.axes[k] != other.axes[k]) {
      return MeshDifference{
          fmt::format("{}.axes[{}].size", path, k),
          fmt::format("the size of axis '{}' of {}", other.axes[k].name, mesh),
          std::to_string(first.axes[k].size),
          std::to_string(other.axes[k].size)};
    }
  }
  if (first.sync_order != other.sync_order) {
    return MeshDifference{
        path + ".sync_order", "the sync_order of " + mesh, words_of(first.sync_order), words_of(other.sync_order)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<MeshDifference> difference_of(const std::vector<Mesh>& first, const std::vector<Mesh>& other) {
  if (const auto before = names_of(first), given = names_of(other); before != given) {
    return MeshDifference{"meshes", "the list of meshes", words_of(before), words_of(given)};
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (auto found = difference_of(first[i], other[i], fmt::format("meshes[{}]", i))) {
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace gradsync::plan
