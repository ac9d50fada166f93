#pragma once
// The first thing in which two lists of meshes differ, for the message that refuses the second one.

#include "plan/mesh/mesh.hpp"

#include <optional>
#include <string>
#include <vector>

namespace gradsync::plan {

struct MeshDifference {
  std::string path;  ///< in the second list: "meshes[0].axes[1].size"
  std::string what;  ///< "the size of axis 'tp' of mesh 'm'"
  std::string first;
  std::string other;
};

/// Empty for equal lists.
[[nodiscard]] std::optional<MeshDifference> difference_of(
    const std::vector<Mesh>& first, const std::vector<Mesh>& other
);

}  // namespace gradsync::plan
