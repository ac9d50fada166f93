#pragma once
// The parts of validate_declaration, one file per concern. Not used outside it.

#include "base/error.hpp"
#include "plan/declaration.hpp"
#include "plan/limits.hpp"
#include "plan/mesh/mesh.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace gradsync::plan {

/// A tensor with its place in the declaration, so that an error can say where it is.
struct TensorAt {
  const TensorDeclaration& tensor;
  std::size_t index;

  /// `field` is relative to the tensor, like "placements[0].axes[1]".
  [[nodiscard]] Error error(ErrorCode code, const std::string& field, const std::string& message, std::string hint)
      const;

  [[nodiscard]] Error invalid(const std::string& field, const std::string& message, std::string hint) const {
    return error(ErrorCode::InvalidDeclaration, field, message, std::move(hint));
  }

  [[nodiscard]] Error unsupported(const std::string& field, const std::string& message, std::string hint) const {
    return error(ErrorCode::UnsupportedPlacement, field, message, std::move(hint));
  }
};

/// Checks the dimensions by themselves: as many local dims as logical ones, nothing negative, sizes that can be
/// counted.
[[nodiscard]] Result<void> check_shapes(const TensorAt& at);

/// Checks this rank's extent against the logical shape: they are equal in every dim that no placement cuts before sync.
[[nodiscard]] Result<void> check_local_extent(const TensorAt& at);

/// Checks that axes are known, placed once and completely, that dims and coordinates are in range, and divisor and
/// split order.
[[nodiscard]] Result<void> check_placements(const TensorAt& at, const Mesh& mesh);

/// The refusal of an option's clip group that has no tensor.
[[nodiscard]] Error unused_clip_group(
    std::size_t index, const std::string& group, const std::vector<std::string>& used
);

/// Checks that nothing is left to reduce: on data path stats there is no partial placement and no divisor.
[[nodiscard]] Result<void> check_reduced(const TensorAt& at);

/// Checks what a declaration has besides its tensors, and what depends on all of them: fingerprints and options.
[[nodiscard]] Result<void> check_beside_tensors(const RankDeclaration& declaration);

/// Checks accumulate, norm_type and the clip groups.
[[nodiscard]] Result<void> check_options(const RankDeclaration& declaration);

}  // namespace gradsync::plan
