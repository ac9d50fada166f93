#include "kernels/tables/chunk_table.hpp"

#include "kernels/tables/scratch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::kernels {
namespace {

using testing::HasSubstr;

/// Never followed: packing looks at addresses only.
void* fake(std::uint64_t address) { return reinterpret_cast<void*>(address); }

struct Opened {
  std::vector<Piece> items;
  std::vector<Piece> small;
};

Opened open(const ChunkTable& table) {
  const DeviceTable host = table.at(table.image().data(), nullptr);
  Opened opened;
  opened.items.assign(host.items, host.items + host.of_dtype.back().end);
  for (const Piece& item : opened.items) {
    if (item.pieces == 0) {
      opened.small.insert(opened.small.end(), host.small + item.first, host.small + item.first + item.count);
    }
  }
  return opened;
}

/// Elements of each tensor that pieces cover, checked to be in order and without gap.
std::vector<std::uint64_t> covered(const ChunkTable& table, const std::vector<TensorSpec>& tensors) {
  std::vector<std::uint64_t> next(tensors.size(), 0);
  const Opened opened = open(table);
  const auto cover = [&](const Piece& piece) {
    EXPECT_LE(piece.first + piece.count, tensors[piece.tensor].count);
    EXPECT_EQ(piece.first, next[piece.tensor]);
    next[piece.tensor] += piece.count;
  };
  for (const Piece& piece : opened.items) {
    if (piece.pieces != 0) {
      cover(piece);
    }
  }
  for (const Piece& piece : opened.small) {
    cover(piece);
  }
  return next;
}

TEST(ChunkTable, covers_every_element_of_every_tensor_once) {
  std::vector<TensorSpec> tensors;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const auto dtype = static_cast<DType>(i % 4);
    const std::uint64_t count = i % 7 == 0 ? 0 : i * i * i % 300'007;
    tensors.push_back({count, dtype, 0, 0});
  }
  const ChunkTable table(tensors, 1, 1);
  const std::vector<std::uint64_t> seen = covered(table, tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(seen[i], tensors[i].count) << i;
  }
}

TEST(ChunkTable, a_tensor_beyond_two_to_the_31_elements_is_cut_without_overflow) {
  const std::vector<TensorSpec> tensors{
      {(1ULL << 31) + 12'345, DType::BFloat16, 0, 0},
      {(1ULL << 33) + 1, DType::Float64, 0, 0},
  };
  const ChunkTable table(tensors, 1, 1);
  const std::vector<std::uint64_t> seen = covered(table, tensors);
  EXPECT_EQ(seen[0], tensors[0].count);
  EXPECT_EQ(seen[1], tensors[1].count);
  EXPECT_GT(open(table).items.size(), 30'000U);
}

TEST(ChunkTable, how_a_tensor_is_cut_does_not_depend_on_its_neighbours) {
  const TensorSpec tensor{1'000'003, DType::Float32, 0, 0};
  const std::vector<TensorSpec> many{{77'777, DType::Float32, 0, 0}, tensor, {5, DType::Float32, 0, 0}};
  const Opened alone = open(ChunkTable({&tensor, 1}, 1, 1));
  std::vector<Piece> among;
  for (const Piece& piece : open(ChunkTable(many, 1, 1)).items) {
    if (piece.pieces != 0 && piece.tensor == 1) {
      among.push_back(piece);
    }
  }
  ASSERT_EQ(alone.items.size(), among.size());
  for (std::size_t i = 0; i < among.size(); ++i) {
    EXPECT_EQ(alone.items[i].first, among[i].first);
    EXPECT_EQ(alone.items[i].count, among[i].count);
  }
}

TEST(ChunkTable, pieces_start_at_whole_steps_and_are_about_equal) {
  const std::vector<TensorSpec> tensors{{450'000, DType::BFloat16, 0, 0}};
  const Opened opened = open(ChunkTable(tensors, 1, 1));
  ASSERT_GT(opened.items.size(), 10U);
  for (const Piece& piece : opened.items) {
    EXPECT_EQ(piece.first * 2 % 4'096, 0U);
    EXPECT_GE(piece.count, opened.items[0].count - 2'048 * opened.items.size());
    EXPECT_LE(piece.count, opened.items[0].count);
  }
}

TEST(ChunkTable, ten_thousand_small_tensors_make_runs_that_fill_a_gpu) {
  const std::vector<TensorSpec> tensors(10'000, TensorSpec{1'000, DType::BFloat16, 0, 0});
  const ChunkTable table(tensors, 1, 1);
  const Opened opened = open(table);
  EXPECT_EQ(opened.small.size(), 10'000U);
  EXPECT_EQ(opened.items.size(), 625U);
  EXPECT_EQ(table.scratch_bytes(), sizeof(PassCounters)) << "small tensors need no records";
}

TEST(ChunkTable, dtypes_have_their_own_items) {
  const std::vector<TensorSpec> tensors{
      {8, DType::Float64, 0, 0}, {100'000, DType::Float32, 0, 0}, {3, DType::Float64, 0, 0}};
  const DeviceTable shape = ChunkTable(tensors, 1, 1).shape();
  EXPECT_EQ(shape.of_dtype[0].begin, 0U);
  EXPECT_EQ(shape.of_dtype[0].end, shape.of_dtype[1].begin);
  EXPECT_EQ(shape.of_dtype[1].begin, shape.of_dtype[1].end);
  EXPECT_EQ(shape.of_dtype[3].end - shape.of_dtype[3].begin, 1U);
}

TEST(ChunkTable, groups_list_their_tensors_in_order) {
  std::vector<TensorSpec> tensors;
  for (std::uint32_t i = 0; i < 9; ++i) {
    tensors.push_back({1, DType::Float32, i % 2 == 0 ? 2U : 0U, i % 3});
  }
  const ChunkTable table(tensors, 3, 3);
  const DeviceTable host = table.at(table.image().data(), nullptr);
  EXPECT_EQ(
      std::vector<std::uint32_t>(host.group_first, host.group_first + 4), (std::vector<std::uint32_t>{0, 4, 4, 9})
  );
  EXPECT_EQ(
      std::vector<std::uint32_t>(host.group_tensors, host.group_tensors + 9),
      (std::vector<std::uint32_t>{1, 3, 5, 7, 0, 2, 4, 6, 8})
  );
  EXPECT_EQ(host.tensors[5].clip_group, 2U);
}

TEST(ChunkTable, addresses_are_a_list_of_their_own) {
  const std::vector<TensorSpec> tensors{{300'000, DType::BFloat16, 0, 0}, {0, DType::Float32, 0, 0}};
  const ChunkTable table(tensors, 1, 1);
  EXPECT_EQ(
      table.addresses(std::vector<void*>{fake((3ULL << 40) + 2), nullptr}),
      (std::vector<std::uint64_t>{(3ULL << 40) + 2, 0})
  );
  const std::uint64_t list[2] = {};
  EXPECT_EQ(table.at(table.image().data(), list).addresses, list);
}

template <typename Body>
std::string refused(const Body& body) {
  try {
    body();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

std::string refusal(const std::vector<TensorSpec>& tensors) {
  return refused([&] { const ChunkTable table(tensors, 2, 3); });
}

TEST(ChunkTable, refuses_what_it_cannot_mean_by_tensor_field_and_value) {
  const TensorSpec good{1, DType::Float32, 0, 0};
  EXPECT_EQ(refusal({good}), "");
  EXPECT_EQ(refusal({{1, DType::Float32, 2, 0}}), "tensors[0].norm_group is 2 of 2");
  EXPECT_EQ(refusal({{1, DType::Float32, 0, 7}}), "tensors[0].clip_group is 7 of 3");
  EXPECT_THAT(refusal({{~0ULL, DType::Float32, 0, 0}}), HasSubstr("more than memory can hold"));
}

TEST(ChunkTable, refuses_addresses_by_tensor_and_value) {
  const std::vector<TensorSpec> tensors{{1, DType::Float32, 0, 0}, {5, DType::Float32, 0, 0}};
  const ChunkTable table(tensors, 1, 1);
  const auto refusal_of = [&](const std::vector<void*>& addresses) {
    return refused([&] { (void)table.addresses(addresses); });
  };
  EXPECT_EQ(refusal_of({fake(64), fake(68)}), "");
  EXPECT_EQ(refusal_of({fake(64)}), "1 addresses for 2 tensors");
  EXPECT_EQ(refusal_of({fake(64), nullptr}), "") << "an absent tensor";
  EXPECT_THAT(refusal_of({fake(66), fake(64)}), HasSubstr("tensors[0].address is 66, not a multiple"));
}

}  // namespace
}  // namespace gradsync::kernels
