#pragma once
// A job's declarations as a file, to be checked without ranks: one JSON object per line. First the head
//   {"gradsync_declaration": 1, "world_size": 8, "meshes": [...], "options": {...}}
// then one line per rank, in any order: {"rank": 0, "tensors": [...]}; meshes, options and tensors as on the wire.

#include "plan/declaration.hpp"
#include "plan/mesh/mesh.hpp"

#include <functional>
#include <istream>
#include <vector>

namespace gradsync::rpc {

struct JobDeclaration {
  std::vector<plan::Mesh> meshes;
  std::vector<plan::RankDeclaration> ranks;  ///< by rank
};

/// Reads and checks each line: errors are ParseError, InvalidParams or those of plan::validate_declaration, with a path
/// like `line 3: tensors[0].dtype`. `progress` hears how many ranks were read.
[[nodiscard]] Result<JobDeclaration> read_declaration_file(
    std::istream& in, const std::function<void(std::size_t ranks)>& progress = {}
);

}  // namespace gradsync::rpc
