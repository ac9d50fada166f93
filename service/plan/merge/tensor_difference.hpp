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

/// Compares the fields that all holders declare alike; local_shape and local_offset are left out, because every rank
/// has its own.
[[nodiscard]] std::optional<Difference> difference_of(const TensorDeclaration& first, const TensorDeclaration& other);
[[nodiscard]] std::optional<Difference> difference_of(const DeclareOptions& first, const DeclareOptions& other);

}  // namespace gradsync::plan
