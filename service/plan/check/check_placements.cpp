#include "base/text/hash.hpp"
#include "base/text/text.hpp"
#include "plan/check/declaration_checks.hpp"
#include "plan/check/words.hpp"
#include "plan/layout/reduction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <unordered_set>

namespace gradsync::plan {

namespace {

std::vector<std::string> axis_list(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const Axis& axis : mesh.axes) {
    names.push_back(axis.name);
  }
  return names;
}

std::string axis_hint(const std::string& axis, const Mesh& mesh) {
  const std::string nearest = nearest_name(axis, axis_list(mesh));
  return nearest.empty() ? fmt::format("axes of mesh '{}': {}", mesh.name, mesh.axis_names())
                         : fmt::format("did you mean '{}'?", nearest);
}

/// Marks the placement's axes in `placed` (one flag per mesh axis) and returns their flattened size.
Result<std::int64_t> place_axes(const TensorAt& at, const Mesh& mesh, std::size_t k, std::vector<bool>& placed) {
  const Placement& placement = at.tensor.placements[k];
  if (placement.axes.empty()) {
    return at.invalid(
        fmt::format("placements[{}].axes", k),
        fmt::format("placement {} names no axis", k),
        fmt::format("axes of mesh '{}': {}", mesh.name, mesh.axis_names())
    );
  }
  std::int64_t size = 1;
  for (std::size_t j = 0; j < placement.axes.size(); ++j) {
    const std::string& axis = placement.axes[j];
    const std::string field = fmt::format("placements[{}].axes[{}]", k, j);
    const auto index = mesh.axis_index(axis);
    if (!index) {
      return at.invalid(
          field,
          fmt::format("axis '{}' is not in mesh '{}' ({})", axis, mesh.name, mesh.axis_names()),
          axis_hint(axis, mesh)
      );
    }
    if (placed[*index]) {
      return at.invalid(field, fmt::format("axis '{}' is placed twice", axis), "give every axis one placement");
    }
    placed[*index] = true;
    size *= mesh.axes[*index].size;
  }
  return size;
}

Result<void> check_dim(const TensorAt& at, std::size_t k, const char* field, const Shard& shard) {
  const auto rank = static_cast<std::int64_t>(at.tensor.shape.size());
  if (shard.dim >= 0 && shard.dim < rank) {
    return {};
  }
  return at.invalid(
      fmt::format("placements[{}].{}", k, field),
      fmt::format(
          "shard dim {} of axis '{}' is not a dim of shape {}",
          shard.dim,
          fmt::join(at.tensor.placements[k].axes, "+"),
          words_of(at.tensor.shape)
      ),
      rank == 0 ? "a scalar cannot be sharded" : fmt::format("dims are 0 to {}", rank - 1)
  );
}

Result<void> check_only(const TensorAt& at, std::size_t k, const Only& only, std::int64_t size) {
  if (only.at.empty()) {
    return at.invalid(
        fmt::format("placements[{}].at", k), "`only` names no coordinate", "name those at which the tensor exists"
    );
  }
  std::unordered_set<std::int64_t> seen;
  for (std::size_t j = 0; j < only.at.size(); ++j) {
    const std::string field = fmt::format("placements[{}].at[{}]", k, j);
    if (only.at[j] < 0 || only.at[j] >= size) {
      return at.invalid(
          field,
          fmt::format(
              "coordinate {} is not on axis {} of size {}",
              only.at[j],
              fmt::join(at.tensor.placements[k].axes, "+"),
              size
          ),
          fmt::format("coordinates are 0 to {}", size - 1)
      );
    }
    if (!seen.insert(only.at[j]).second) {
      return at.invalid(field, fmt::format("coordinate {} is named twice", only.at[j]), "name every coordinate once");
    }
  }
  return {};
}

Result<void> check_kind(const TensorAt& at, std::size_t k, std::int64_t size) {
  const PlacementKind& kind = at.tensor.placements[k].kind;
  if (const Shard* shard = std::get_if<Shard>(&kind)) {
    return check_dim(at, k, "dim", *shard);
  }
  if (const Only* only = std::get_if<Only>(&kind)) {
    return check_only(at, k, *only, size);
  }
  if (const Partial* partial = std::get_if<Partial>(&kind); partial != nullptr && partial->to_shard) {
    return check_dim(at, k, "to.dim", *partial->to_shard);
  }
  return {};
}

Result<void> check_divisor(const TensorAt& at) {
  const TensorDeclaration& tensor = at.tensor;
  if (!tensor.divisor) {
    return {};
  }
  const double divisor = *tensor.divisor;
  if (!std::isfinite(divisor) || divisor <= 0) {
    return at.invalid(
        "divisor",
        fmt::format("divisor is {}, a finite number > 0 is expected", divisor),
        "leave it out to divide by nothing"
    );
  }
  using Float = std::numeric_limits<float>;
  if (tensor.dtype != DType::Float64 && (divisor > Float::max() || divisor < Float::min())) {
    return at.invalid(
        "divisor",
        fmt::format(
            "divisor {} is outside the range of float32, in which {} is divided", divisor, name_of(tensor.dtype)
        ),
        "use a divisor that float32 can hold"
    );
  }
  for (const Placement& placement : tensor.placements) {
    const Partial* partial = std::get_if<Partial>(&placement.kind);
    if (partial != nullptr && partial->op == ReduceOp::Mean) {
      return at.invalid(
          "divisor",
          fmt::format("divisor {} together with a mean over {}", divisor, fmt::join(placement.axes, "+")),
          "a divisor is applied once instead of means: use partial(sum)"
      );
    }
  }
  return {};
}

bool cuts(const Placement& placement) {
  const Partial* partial = std::get_if<Partial>(&placement.kind);
  return std::holds_alternative<Shard>(placement.kind) || (partial != nullptr && partial->to_shard);
}

/// Every axis of a cutting placement, one after the other in the order in which it is flattened.
Result<void> check_nested(const TensorAt& at, const Placement& placement) {
  const std::vector<std::string>& order = at.tensor.split_order;
  const auto first = std::find(order.begin(), order.end(), placement.axes.front());
  const auto have = static_cast<std::size_t>(order.end() - first);
  if (have >= placement.axes.size() && std::equal(placement.axes.begin(), placement.axes.end(), first)) {
    return {};
  }
  return at.invalid(
      "split_order",
      fmt::format(
          "split_order {} does not name '{}' {}",
          words_of(order),
          fmt::join(placement.axes, "+"),
          placement.axes.size() == 1 ? "" : "one after the other"
      ),
      "name every axis that shards the tensor, first split first; flattened axes stand together in their order"
  );
}

std::int64_t flat_size(const Placement& placement, const Mesh& mesh) {
  std::int64_t size = 1;
  for (const std::string& axis : placement.axes) {
    size *= mesh.axes[*mesh.axis_index(axis)].size;
  }
  return size;
}

/// Sync scatters what is there before it: so its cuts come after all others, and in the order of its stages.
Result<void> check_scattered_last(const TensorAt& at, const Mesh& mesh) {
  struct Cut {
    std::size_t named = 0;  ///< in split_order
    bool scatters = false;
    std::size_t stage = 0;
    const Placement* placement = nullptr;
  };

  std::vector<Cut> order;
  for (const Placement& placement : at.tensor.placements) {
    if (!cuts(placement) || (std::holds_alternative<Partial>(placement.kind) && flat_size(placement, mesh) == 1)) {
      continue;  // without a stage there is no cut
    }
    const auto named = std::find(at.tensor.split_order.begin(), at.tensor.split_order.end(), placement.axes.front());
    Cut cut{static_cast<std::size_t>(named - at.tensor.split_order.begin()), false, 0, &placement};
    if (std::holds_alternative<Partial>(placement.kind)) {
      cut.scatters = true;
      cut.stage = sync_position(placement, mesh);
    }
    order.push_back(cut);
  }
  std::sort(order.begin(), order.end(), [](const Cut& a, const Cut& b) { return a.named < b.named; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Cut& before = order[i - 1];
    const Cut& after = order[i];
    if (std::tuple(before.scatters, before.stage) > std::tuple(after.scatters, after.stage)) {
      return at.invalid(
          "split_order",
          fmt::format(
              "split_order {} has '{}' before '{}', but sync makes the cut of {} later",
              words_of(at.tensor.split_order),
              words_of(*before.placement),
              words_of(*after.placement),
              fmt::join(before.placement->axes, "+")
          ),
          "name `shard` axes first, then `partial → shard` axes in the mesh's sync_order; or leave split_order out"
      );
    }
  }
  return {};
}

Result<void> check_split_order(const TensorAt& at, const Mesh& mesh) {
  if (at.tensor.split_order.empty()) {
    return {};
  }
  std::unordered_set<std::string_view, KeyedHash> cutting;
  for (const Placement& placement : at.tensor.placements) {
    if (cuts(placement)) {
      cutting.insert(placement.axes.begin(), placement.axes.end());
    }
  }
  std::unordered_set<std::string_view, KeyedHash> seen;
  for (std::size_t j = 0; j < at.tensor.split_order.size(); ++j) {
    const std::string& axis = at.tensor.split_order[j];
    const std::string field = fmt::format("split_order[{}]", j);
    if (!cutting.contains(axis)) {
      return at.invalid(
          field,
          fmt::format("split_order names axis '{}', which does not shard the tensor", axis),
          mesh.axis_index(axis) ? "split_order lists the axes that shard the tensor" : axis_hint(axis, mesh)
      );
    }
    if (!seen.insert(axis).second) {
      return at.invalid(field, fmt::format("split_order names axis '{}' twice", axis), "name every axis once");
    }
  }
  for (const Placement& placement : at.tensor.placements) {
    if (cuts(placement)) {
      if (const auto nested = check_nested(at, placement); !nested) {
        return nested.error();
      }
    }
  }
  return check_scattered_last(at, mesh);
}

}  // namespace

Result<void> check_placements(const TensorAt& at, const Mesh& mesh) {
  std::vector<bool> placed(mesh.axes.size(), false);
  for (std::size_t k = 0; k < at.tensor.placements.size(); ++k) {
    const auto size = place_axes(at, mesh, k, placed);
    if (!size) {
      return size.error();
    }
    if (const auto kind = check_kind(at, k, *size); !kind) {
      return kind.error();
    }
  }
  for (std::size_t a = 0; a < mesh.axes.size(); ++a) {
    if (mesh.axes[a].size > 1 && !placed[a]) {
      return at.invalid(
          "placements",
          fmt::format("axis '{}' of size {} has no placement", mesh.axes[a].name, mesh.axes[a].size),
          "say what every axis does: replicate where all ranks hold equal bits, partial where they are to be reduced"
      );
    }
  }
  if (const auto divisor = check_divisor(at); !divisor) {
    return divisor.error();
  }
  return check_split_order(at, mesh);
}

Result<void> check_reduced(const TensorAt& at) {
  for (std::size_t k = 0; k < at.tensor.placements.size(); ++k) {
    const Placement& placement = at.tensor.placements[k];
    if (std::holds_alternative<Partial>(placement.kind)) {
      return at.unsupported(
          fmt::format("placements[{}]", k),
          fmt::format("'{}': on data path stats nobody reduces it any more", words_of(placement)),
          "reduce the gradient before its norm is taken, and declare what it is then: replicate or shard"
      );
    }
  }
  if (at.tensor.divisor) {
    return at.invalid(
        "divisor",
        fmt::format("divisor is {}, but on data path stats nothing is divided", *at.tensor.divisor),
        "leave it out: the framework has applied it"
    );
  }
  return {};
}

}  // namespace gradsync::plan
