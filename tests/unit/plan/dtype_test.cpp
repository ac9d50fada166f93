#include "plan/dtype.hpp"

#include <gtest/gtest.h>

namespace gradsync::plan {
namespace {

TEST(DType, every_wire_name_reads_back) {
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16, DType::Float64}) {
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
  }
}

TEST(DType, has_the_size_of_its_elements) {
  EXPECT_EQ(size_of(DType::Float32), 4U);
  EXPECT_EQ(size_of(DType::BFloat16), 2U);
  EXPECT_EQ(size_of(DType::Float16), 2U);
  EXPECT_EQ(size_of(DType::Float64), 8U);
}

TEST(DType, does_not_guess_other_spellings) {
  for (const char* name : {"", "fp32", "Float32", "float32 ", "torch.float32", "int8"}) {
    EXPECT_EQ(parse_dtype(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace gradsync::plan
