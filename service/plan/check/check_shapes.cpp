#include "plan/check/declaration_checks.hpp"
#include "plan/check/words.hpp"

#include <fmt/format.h>

namespace gradsync::plan {

namespace {

constexpr std::int64_t kMaxTensorBytes = std::int64_t{1} << 62;

Result<void> check_dims(const TensorAt& at, const char* field, const std::vector<std::int64_t>& dims) {
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] < 0) {
      return at.invalid(
          fmt::format("{}[{}]", field, d),
          fmt::format("{}[{}] is {}, a size ≥ 0 is expected", field, d, dims[d]),
          "sizes count elements; an empty tensor has size 0"
      );
    }
  }
  return {};
}

Result<void> check_countable(const TensorAt& at) {
  const std::vector<std::int64_t>& shape = at.tensor.shape;
  for (const std::int64_t extent : shape) {
    if (extent == 0) {
      return {};
    }
  }
  std::int64_t bytes = static_cast<std::int64_t>(size_of(at.tensor.dtype));
  for (const std::int64_t extent : shape) {
    if (extent > (kMaxTensorBytes - 1) / bytes) {
      return at.invalid(
          "shape",
          fmt::format("shape {} of {} needs 2^62 bytes or more", words_of(shape), name_of(at.tensor.dtype)),
          "check the sizes"
      );
    }
    bytes *= extent;
  }
  return {};
}

Result<void> check_same_rank(const TensorAt& at, const char* field, const std::vector<std::int64_t>& dims) {
  const std::vector<std::int64_t>& shape = at.tensor.shape;
  if (dims.size() != shape.size()) {
    return at.invalid(
        field,
        fmt::format(
            "{} {} has {} dims, shape {} has {}", field, words_of(dims), dims.size(), words_of(shape), shape.size()
        ),
        fmt::format("{} has one number for every dim of shape", field)
    );
  }
  return {};
}

}  // namespace

Result<void> check_shapes(const TensorAt& at) {
  const TensorDeclaration& tensor = at.tensor;
  if (const auto dims = check_dims(at, "shape", tensor.shape); !dims) {
    return dims.error();
  }
  if (const auto dims = check_dims(at, "local_shape", tensor.local_shape); !dims) {
    return dims.error();
  }
  if (const auto same = check_same_rank(at, "local_shape", tensor.local_shape); !same) {
    return same.error();
  }
  if (tensor.local_offset) {
    if (const auto same = check_same_rank(at, "local_offset", *tensor.local_offset); !same) {
      return same.error();
    }
    if (const auto dims = check_dims(at, "local_offset", *tensor.local_offset); !dims) {
      return dims.error();
    }
  }
  return check_countable(at);
}

namespace {

Error extent_differs(const TensorAt& at, std::size_t d, bool cut) {
  const std::string placements = words_of(at.tensor.placements);
  return at.invalid(
      fmt::format("local_shape[{}]", d),
      fmt::format(
          "local_shape[{}] is {} and shape[{}] is {}, but {}",
          d,
          at.tensor.local_shape[d],
          d,
          at.tensor.shape[d],
          cut ? fmt::format("a shard ({}) cannot be larger than the whole", placements)
              : fmt::format("no placement shards dim {} ({})", d, placements)
      ),
      cut ? "give the size that this rank holds"
          : "declare the shape that this rank holds, or the placement that cuts it"
  );
}

Error beyond_shape(const TensorAt& at, std::size_t d, std::int64_t offset) {
  return at.invalid(
      fmt::format("local_offset[{}]", d),
      fmt::format(
          "local_offset[{}] {} + local_shape[{}] {} is beyond shape[{}] {} ({})",
          d,
          offset,
          d,
          at.tensor.local_shape[d],
          d,
          at.tensor.shape[d],
          words_of(at.tensor.placements)
      ),
      "offset and size of a shard lie inside the logical shape"
  );
}

}  // namespace

Result<void> check_local_extent(const TensorAt& at) {
  const TensorDeclaration& tensor = at.tensor;
  std::vector<bool> cut(tensor.shape.size(), false);
  for (const Placement& placement : tensor.placements) {
    if (const Shard* shard = std::get_if<Shard>(&placement.kind)) {
      cut[static_cast<std::size_t>(shard->dim)] = true;
    }
  }
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    const std::int64_t held = tensor.local_shape[d];
    const std::int64_t logical = tensor.shape[d];
    if (held > logical || (!cut[d] && held != logical)) {
      return extent_differs(at, d, cut[d]);
    }
    const std::int64_t offset = tensor.local_offset ? (*tensor.local_offset)[d] : 0;
    if (offset > logical - held) {
      return beyond_shape(at, d, offset);
    }
  }
  return {};
}

}  // namespace gradsync::plan
