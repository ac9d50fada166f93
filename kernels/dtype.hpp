#pragma once
// Element types, in the order of plan::DType.

#include <cstddef>
#include <cstdint>

namespace gradsync::kernels {

enum class DType : std::uint8_t { Float32, BFloat16, Float16, Float64 };

inline constexpr std::size_t kDTypes = 4;

constexpr std::size_t size_of(DType dtype) { return dtype == DType::Float64 ? 8 : dtype == DType::Float32 ? 4 : 2; }

}  // namespace gradsync::kernels
