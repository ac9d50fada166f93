#include "kernels/tables/copy_table.hpp"

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
  EXPECT_THAT(refusal(part), HasSubstr("parts[0].divisor is 0, it must be positive"));
  // Neither has a float32 that could divide.
  for (const double divisor : {1e39, 1e-46}) {
    part.divisor = divisor;
    EXPECT_THAT(refusal(part), HasSubstr("finite in the type of the division"));
    CopyPart wide = part_of(5, DType::Float64, DType::Float64);
    wide.divisor = divisor;
    EXPECT_EQ(refusal(wide), "");
  }
  part = part_of(5);
  part.rows = 2;
  part.destination_stride = 4;
  EXPECT_EQ(refusal(part), "parts[0].destination_stride is 4: rows would overlap");
  part.rows = ~0ULL;
  EXPECT_THAT(refusal(part), HasSubstr("more than memory can hold"));
  EXPECT_THAT(refusal(part_of(5, DType::Float64, DType::BFloat16)), HasSubstr("cast through float32"));
  EXPECT_THAT(refusal(part_of(5, DType::Float16, DType::Float64)), HasSubstr("cast through float32"));
}

TEST(CopyTable, what_is_unpacked_is_not_divided_again) {
  CopyPart part = part_of(5, DType::BFloat16, DType::Float32);
  part.divisor = 8;
  const CopyPart back = reversed(part);
  EXPECT_EQ(back.divisor, 1);
  EXPECT_EQ(back.source, part.destination);
  EXPECT_EQ(back.source_dtype, DType::Float32);
  EXPECT_EQ(back.destination_dtype, DType::BFloat16);
}

TEST(CopyTable, shards_that_would_overlap_and_no_shards_at_all_are_refused) {
  const ShardedTensor tensor{fake(4'096), DType::Float32, 2, 5, 3};
  EXPECT_EQ(padded_shard_count(tensor, 2), 18U);
  EXPECT_THROW((void)padded_shard_count(tensor, 0), std::invalid_argument);
  const auto parts = [&](std::uint64_t stride, std::uint32_t ranks) {
    return shard_parts(tensor, {fake(1ULL << 40), DType::Float32, stride, 2}, ranks, 1);
  };
  EXPECT_EQ(parts(20, 2).size(), 3U);  // two shards and the padding of the short one
  EXPECT_EQ(parts(0, 1).size(), 1U);
  EXPECT_THROW((void)parts(19, 2), std::invalid_argument);
  EXPECT_THROW((void)parts(20, 0), std::invalid_argument);
}

}  // namespace
}  // namespace gradsync::kernels
