// What every implementation of copy must do: pack, unpack, cast, divide, shards for reduce-scatter.

#include "kernels/gradients.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace gradsync::kernels {
namespace {

constexpr DType kAllDTypes[] = {DType::Float32, DType::BFloat16, DType::Float16, DType::Float64};

class CopyConformance : public testing::TestWithParam<NamedImplementation> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(GetParam()); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    implementation_ = GetParam().make();
  }

  /// The buffers after the same copies by the implementation and by the reference are equal.
  void expect_like_reference(std::vector<HostBuffer> buffers, const MakeParts& parts, const std::string& what) {
    std::vector<HostBuffer> expected = buffers;
    make_reference()->copy(expected, parts);
    implementation_->copy(buffers, parts);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_EQ(buffers[i].bytes, expected[i].bytes) << what << " buffer " << i;
    }
  }

  std::unique_ptr<Implementation> implementation_;
};

INSTANTIATE_TEST_SUITE_P(Kernels, CopyConformance, testing::ValuesIn(implementations()), [](const auto& one) {
  return one.param.name;
});

HostBuffer buffer_of(const HostTensor& tensor) { return {tensor.bytes, tensor.offset}; }

/// Filled with bytes that a copy must overwrite, or leave where it has no business.
HostBuffer blank(std::uint64_t count, DType dtype, std::size_t offset_elements = 0) {
  return {std::vector<std::byte>(count * size_of(dtype), std::byte{0x5a}), offset_elements * size_of(dtype)};
}

bool supported(DType a, DType b) {
  return std::max(size_of(a), size_of(b)) < 8 || std::min(size_of(a), size_of(b)) > 2;
}

TEST_P(CopyConformance, casts_between_dtypes_round_once_for_every_length_and_alignment) {
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      if (!supported(from, to)) {
        continue;
      }
      for (const double divisor : {1.0, 3.0, 64.0}) {
        std::vector<HostBuffer> buffers;
        std::vector<std::uint64_t> counts;
        for (const std::uint64_t count : {0, 1, 7, 8, 9, 255, 2'048, 16'384, 16'385, 40'009}) {
          for (const std::size_t offset : {0, 1}) {
            counts.push_back(count);
            buffers.push_back(buffer_of(make_tensor(from, count, Values::Extreme, offset)));
            buffers.push_back(blank(count, to, 3 * offset));
          }
        }
        expect_like_reference(
            buffers,
            [&](const std::vector<void*>& addresses) {
              std::vector<CopyPart> parts;
              for (std::size_t i = 0; i < counts.size(); ++i) {
                CopyPart part;
                part.source = addresses[2 * i];
                part.destination = addresses[2 * i + 1];
                part.source_dtype = from;
                part.destination_dtype = to;
                part.row_count = counts[i];
                part.divisor = divisor;
                parts.push_back(part);
              }
              return parts;
            },
            name_of(from) + " to " + name_of(to) + " divisor " + std::to_string(divisor)
        );
      }
    }
  }
}

TEST_P(CopyConformance, values_that_are_not_finite_become_canonical) {
  for (const DType to : {DType::Float32, DType::BFloat16, DType::Float16}) {
    expect_like_reference(
        {buffer_of(make_tensor(DType::Float32, 1'000, Values::Nonfinite)), blank(1'000, to)},
        [&](const std::vector<void*>& addresses) {
          CopyPart part;
          part.source = addresses[0];
          part.destination = addresses[1];
          part.destination_dtype = to;
          part.row_count = 1'000;
          return std::vector<CopyPart>{part};
        },
        name_of(to)
    );
  }
}

TEST_P(CopyConformance, tensors_are_packed_into_one_bucket_and_unpacked_again) {
  const std::vector<std::uint64_t> counts{1'000, 3, 0, 17'003, 256};
  std::vector<HostBuffer> buffers;
  std::uint64_t total = 0;
  for (const std::uint64_t count : counts) {
    buffers.push_back(buffer_of(make_tensor(DType::BFloat16, count, Values::Normal)));
    total += count;
  }
  buffers.push_back(blank(total, DType::Float32));
  const auto pack = [&](const std::vector<void*>& addresses) {
    std::vector<CopyPart> parts;
    std::uint64_t offset = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      CopyPart part;
      part.source = addresses[i];
      part.destination = static_cast<float*>(addresses.back()) + offset;
      part.source_dtype = DType::BFloat16;
      part.row_count = counts[i];
      offset += counts[i];
      parts.push_back(part);
    }
    return parts;
  };
  const auto unpack = [&](const std::vector<void*>& addresses) {
    std::vector<CopyPart> parts;
    for (const CopyPart& part : pack(addresses)) {
      parts.push_back(reversed(part));
    }
    return parts;
  };
  std::vector<HostBuffer> copied = buffers;
  implementation_->copy(copied, pack);
  std::vector<HostBuffer> back = copied;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    back[i] = blank(counts[i], DType::BFloat16);
  }
  implementation_->copy(back, unpack);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(back[i].bytes, buffers[i].bytes) << i;
  }
}

/// Value i of a tensor is i: so each place of the bucket tells where it came from.
HostTensor numbered(std::uint64_t count) {
  HostTensor tensor = make_tensor(DType::Float32, count, Values::Zero);
  for (std::uint64_t i = 0; i < count; ++i) {
    set_element(tensor, i, static_cast<double>(i + 1));
  }
  return tensor;
}

TEST_P(CopyConformance, shards_lie_rank_by_rank_with_zeros_where_they_are_short) {
  for (const std::uint32_t ranks : {1, 2, 3, 4, 5, 8}) {
    for (const std::uint64_t extent : {1, 4, 7, 16}) {
      for (const std::uint64_t inner : {1, 8, 37}) {
        const std::uint64_t outer = 3;
        const std::uint64_t chunk = (extent + ranks - 1) / ranks;
        const std::uint64_t padded = outer * chunk * inner;
        const std::uint64_t stride = padded + 5;
        std::vector<HostBuffer> buffers{
            buffer_of(numbered(outer * extent * inner)), blank(ranks * stride, DType::Float32)};
        const auto parts = [&](const std::vector<void*>& addresses) {
          const ShardedTensor tensor{addresses[0], DType::Float32, outer, extent, inner};
          EXPECT_EQ(padded_shard_count(tensor, ranks), padded);
          return shard_parts(tensor, {addresses[1], DType::Float32, stride, 2}, ranks, 1);
        };
        implementation_->copy(buffers, parts);
        HostTensor bucket;
        bucket.bytes = buffers[1].bytes;
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
          const std::uint64_t begin = std::min(rank * chunk, extent);
          const std::uint64_t here = std::min(chunk, extent - begin);
          for (std::uint64_t i = 0; i < padded; ++i) {
            const std::uint64_t row = here == 0 ? outer : i / (here * inner);
            const std::uint64_t column = here == 0 ? 0 : i % (here * inner);
            const double expected = row < outer ? static_cast<double>((row * extent + begin) * inner + column + 1) : 0;
            ASSERT_EQ(element(bucket, rank * stride + 2 + i), expected)
                << "ranks " << ranks << " extent " << extent << " inner " << inner << " rank " << rank << " place "
                << i;
          }
        }
      }
    }
  }
}

TEST_P(CopyConformance, shards_of_large_rows_are_unpacked_into_their_places) {
  const std::uint64_t outer = 5;
  const std::uint64_t extent = 6;
  const std::uint64_t inner = 1'024;
  const std::vector<HostBuffer> start{
      buffer_of(make_tensor(DType::BFloat16, outer * extent * inner, Values::Normal)),
      blank(outer * extent * inner, DType::Float32),
  };
  const auto parts = [&](const std::vector<void*>& addresses) {
    const ShardedTensor tensor{addresses[0], DType::BFloat16, outer, extent, inner};
    return shard_parts(tensor, {addresses[1], DType::Float32, outer * 2 * inner, 0}, 3, 2);
  };
  expect_like_reference(start, parts, "pack");
  std::vector<HostBuffer> packed = start;
  make_reference()->copy(packed, parts);
  packed[0] = blank(outer * extent * inner, DType::BFloat16);
  expect_like_reference(
      packed,
      [&](const std::vector<void*>& addresses) {
        std::vector<CopyPart> back;
        for (const CopyPart& part : parts(addresses)) {
          back.push_back(reversed(part));
        }
        return back;
      },
      "unpack"
  );
}

}  // namespace
}  // namespace gradsync::kernels
