#pragma once
// Short ways to write declarations in tests of the plan layer.

#include "plan/make_plan.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace gradsync::plan {

inline Mesh mesh(std::vector<Axis> axes, std::string name = "dense") { return {std::move(name), std::move(axes), {}}; }

inline const std::vector<Mesh> kDp2{mesh({{"dp", 2}})};

inline Placement partial(std::vector<std::string> axes, ReduceOp op = ReduceOp::Mean) {
  return {std::move(axes), Partial{op, {}}};
}

inline Placement replicate(std::vector<std::string> axes) { return {std::move(axes), Replicate{}}; }

inline Placement shard(std::vector<std::string> axes, std::int64_t dim) { return {std::move(axes), Shard{dim}}; }

inline Placement only(std::vector<std::string> axes, std::vector<std::int64_t> at) {
  return {std::move(axes), Only{at}};
}

inline TensorDeclaration tensor(
    std::string name, std::vector<std::int64_t> shape, std::vector<Placement> placements = {partial({"dp"})}
) {
  TensorDeclaration result;
  result.name = std::move(name);
  result.shape = shape;
  result.local_shape = std::move(shape);
  result.mesh = "dense";
  result.placements = std::move(placements);
  return result;
}

inline RankDeclaration declaration(std::vector<TensorDeclaration> tensors) {
  RankDeclaration result;
  result.tensors = std::move(tensors);
  return result;
}

/// The plan of a job whose ranks declare alike; an empty one and a failure when it is refused.
inline Plan make_plan(
    const RankDeclaration& declared, const std::vector<Mesh>& meshes, std::int64_t world_size, BucketSizes sizes
) {
  const std::vector<const RankDeclaration*> by_rank(static_cast<std::size_t>(world_size), &declared);
  Result<Plan> plan = plan_job(by_rank, meshes, sizes);
  if (!plan) {
    ADD_FAILURE() << plan.error().message;
    return {};
  }
  return *plan;
}

/// The error of a declaration that must be refused; a default Error and a failure when it is not.
inline Error refused(const RankDeclaration& declaration, const std::vector<Mesh>& meshes) {
  const auto result = validate_declaration(declaration, meshes);
  return result ? make_error(ErrorCode::InternalError, "the declaration was accepted") : result.error();
}

}  // namespace gradsync::plan
