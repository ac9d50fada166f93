#pragma once
// What must be so of the declarations of all ranks, whatever they say: refused, or a plan that counts and places every
// element once.

#include "plan/declaration.hpp"
#include "plan/make_plan.hpp"
#include "plan/mesh/mesh.hpp"

#include <vector>

namespace gradsync::fuzz {

/// Validates each, plans all, and checks the plan. True: there was one.
bool check_declared(const std::vector<plan::RankDeclaration>& ranks, const std::vector<plan::Mesh>& meshes);

}  // namespace gradsync::fuzz
