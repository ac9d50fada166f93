#pragma once
// A mesh: named axes over the ranks of a job, row-major, last axis fastest.

#include "base/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::plan {

struct Axis {
  std::string name;
  std::int64_t size = 1;
  friend bool operator==(const Axis&, const Axis&) = default;
};

struct Mesh {
  std::string name;
  std::vector<Axis> axes;
  std::vector<std::string> sync_order;  ///< axis names, first stage first; empty: conventional order (tp first)

  friend bool operator==(const Mesh&, const Mesh&) = default;

  [[nodiscard]] std::int64_t size() const;  ///< product of the axis sizes
  [[nodiscard]] std::optional<std::size_t> axis_index(std::string_view axis) const;
  [[nodiscard]] std::string axis_names() const;  ///< "dp, tp" for messages
  /// Coordinates of a rank, one per axis.
  [[nodiscard]] std::vector<std::int64_t> coordinates(std::int64_t rank) const;
};

/// The index of the mesh of that name, which must be in the list.
[[nodiscard]] std::size_t mesh_index(const std::vector<Mesh>& meshes, std::string_view name);

/// Checks names, sizes and that every mesh covers exactly `world_size` ranks. `path` of an error is relative to the
/// list: `meshes[0].axes[1].size`.
[[nodiscard]] Result<void> validate_meshes(const std::vector<Mesh>& meshes, std::int64_t world_size);

}  // namespace gradsync::plan
