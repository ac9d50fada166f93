#pragma once
// The first field in which two declarations differ, both values in words.

#include "plan/declaration.hpp"

#include <optional>
#include <string>

namespace gradsync::plan {

struct Difference {
  std::string field;
  std::string first;
  std::string other;
};

/// Which fields of a tensor have to agree.
enum class Fields : std::uint8_t {
  All,
  Common,  ///< local_shape and local_offset apart: every rank has its own
};

[[nodiscard]] std::optional<Difference> difference_of(
    const TensorDeclaration& first, const TensorDeclaration& other, Fields fields
);
[[nodiscard]] std::optional<Difference> difference_of(const DeclareOptions& first, const DeclareOptions& other);

}  // namespace gradsync::plan
