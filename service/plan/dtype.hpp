#pragma once
// Element types of gradients, by their wire names.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace gradsync::plan {

enum class DType : std::uint8_t { Float32, BFloat16, Float16, Float64 };

[[nodiscard]] std::size_t size_of(DType dtype);
[[nodiscard]] std::string_view name_of(DType dtype);  ///< "float32", "bfloat16", "float16", "float64"
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view name);

}  // namespace gradsync::plan
