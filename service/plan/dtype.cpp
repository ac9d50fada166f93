#include "plan/dtype.hpp"

#include "base/assert.hpp"

#include <array>
#include <utility>

namespace gradsync::plan {

namespace {

struct Row {
  DType dtype;
  std::string_view name;
  std::size_t size;
};

constexpr std::array<Row, 4> kRows{{
    {DType::Float32, "float32", 4},
    {DType::BFloat16, "bfloat16", 2},
    {DType::Float16, "float16", 2},
    {DType::Float64, "float64", 8},
}};

const Row& row_of(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  GRADSYNC_ASSERT(index < kRows.size() && kRows[index].dtype == dtype, "kRows lists every DType in its order");
  return kRows[index];
}

}  // namespace

std::size_t size_of(DType dtype) { return row_of(dtype).size; }

std::string_view name_of(DType dtype) { return row_of(dtype).name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

}  // namespace gradsync::plan
