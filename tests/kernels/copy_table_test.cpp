#include "kernels/copy_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::kernels {
namespace {

using testing::HasSubstr;

void* fake(std::uint64_t address) { return reinterpret_cast<void*>(address); }

CopyPart part_of(std::uint64_t count, DType from = DType::Float32, DType to = DType::Float32) {
  CopyPart part;
  part.source = fake(4'096);
  part.destination = fake(1ULL << 40);
  part.source_dtype = from;
  part.destination_dtype = to;
  part.row_count = count;
  return part;
}

TEST(CopyTable, items_cover_their_parts_also_beyond_two_to_the_31_elements) {
  const std::vector<CopyPart> parts{part_of(10), part_of((1ULL << 31) + 77), part_of(0)};
  const CopyTable table(parts);
  const DeviceCopyTable host = table.at(table.image().data());
  std::vector<std::uint64_t> covered(parts.size(), 0);
  for (std::uint32_t i = 0; i < host.first_of_pair.back(); ++i) {
    EXPECT_EQ(host.items[i].first, covered[host.items[i].part]);
    covered[host.items[i].part] += host.items[i].count;
  }
  EXPECT_EQ(covered, (std::vector<std::uint64_t>{10, (1ULL << 31) + 77, 0}));
}

TEST(CopyTable, a_power_of_two_divides_by_multiplying) {
  std::vector<CopyPart> parts{part_of(8), part_of(8), part_of(8)};
  parts[0].divisor = 64;
  parts[1].divisor = 3;
  parts[2].divisor = 0x1p-130;  // whose inverse float32 does not have
  const CopyTable table(parts);
  const DeviceCopyTable host = table.at(table.image().data());
  EXPECT_EQ(host.parts[0].multiplier, 1.0 / 64);
  EXPECT_EQ(host.parts[0].divisor, 1);
  EXPECT_EQ(host.parts[1].divisor, 3);
  EXPECT_EQ(host.parts[2].divisor, 0x1p-130);
}

TEST(CopyTable, wide_copies_are_only_for_aligned_rows_of_whole_groups) {
  std::vector<CopyPart> parts{part_of(9), part_of(8), part_of(8), part_of(7)};
  parts[1].source = fake(4'100);
  parts[2].rows = parts[3].rows = 2;
  parts[2].source_stride = 24;
  parts[2].destination_stride = 8;
  parts[3].source_stride = 8;
  parts[3].destination_stride = 8;
  const CopyTable table(parts);
  const DeviceCopyTable host = table.at(table.image().data());
  EXPECT_EQ(host.parts[0].wide, 1U);
  EXPECT_EQ(host.parts[1].wide, 0U);
  EXPECT_EQ(host.parts[2].wide, 1U);
  EXPECT_EQ(host.parts[3].wide, 0U);
}

std::string refusal(const CopyPart& part) {
  try {
    const CopyTable table({&part, 1});
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(CopyTable, refuses_what_it_cannot_mean_by_part_field_and_value) {
  EXPECT_EQ(refusal(part_of(5)), "");
  CopyPart part = part_of(5);
  part.destination = nullptr;
  EXPECT_EQ(refusal(part), "parts[0].destination is null");
  part = part_of(5);
  part.source = fake(4'097);
  EXPECT_THAT(refusal(part), HasSubstr("parts[0].source is not a multiple of the element's 4 bytes"));
  part = part_of(5);
  part.divisor = 0;
  EXPECT_THAT(refusal(part), HasSubstr("parts[0].divisor is 0.0"));
  part = part_of(5);
  part.rows = 2;
  part.destination_stride = 4;
  EXPECT_EQ(refusal(part), "parts[0].destination_stride is 4: rows would overlap");
  part.rows = ~0ULL;
  EXPECT_THAT(refusal(part), HasSubstr("more than memory can hold"));
  EXPECT_THAT(refusal(part_of(5, DType::Float64, DType::BFloat16)), HasSubstr("cast through float32"));
  EXPECT_THAT(refusal(part_of(5, DType::Float16, DType::Float64)), HasSubstr("cast through float32"));
}

}  // namespace
}  // namespace gradsync::kernels
