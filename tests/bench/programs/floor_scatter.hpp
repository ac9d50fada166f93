#pragma once
// The floor of the benchmarks that scatter: four ranks in float32, as `replicas` × `shards`.
//
//   scatter pass  read the four inputs once, write the mean to the output of every rank that holds the part, sum the
//                 squares of what was written
//   scale pass    (if there is a clip) read the output of one rank per part, write that of each rank
//
// Per element of an input that is 4 reads and `replicas` writes, then 1 read and `replicas` writes.

#include "bench/programs/floor_team.hpp"

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

namespace gradsync::floors {

inline constexpr std::size_t kScatterRanks = 4;

template <std::size_t Replicas>
float scatter(
    const std::array<const float*, kScatterRanks>& from, const std::array<float*, Replicas>& to, std::size_t count
) {
  const float* __restrict a = from[0];
  const float* __restrict b = from[1];
  const float* __restrict c = from[2];
  const float* __restrict d = from[3];
  float* __restrict first = to[0];
  float* __restrict last = to[Replicas - 1];
  float squares = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float mean = (a[i] + b[i] + c[i] + d[i]) * 0.25F;
    first[i] = mean;
    if constexpr (Replicas == 2) {
      last[i] = mean;
    }
    squares += mean * mean;
  }
  return squares;
}

template <std::size_t Replicas>
void scale(const std::array<float*, Replicas>& to, std::size_t count, float coefficient) {
  float* __restrict first = to[0];
  float* __restrict last = to[Replicas - 1];
  for (std::size_t i = 0; i < count; ++i) {
    const float scaled = first[i] * coefficient;
    first[i] = scaled;
    if constexpr (Replicas == 2) {
      last[i] = scaled;
    }
  }
}

/// Rank r·shards + s holds part s of the sum, of `count` / shards elements.
template <std::size_t Replicas>
class ScatterFloor {
 public:
  ScatterFloor(std::size_t count, unsigned threads, double max_norm)
      : part_(count / kShards), max_norm_(max_norm), team_(threads) {
    for (std::size_t rank = 0; rank < kScatterRanks; ++rank) {
      inputs_[rank] = map_elements<float>(count);
      outputs_[rank] = map_elements<float>(part_);
    }
  }

  void fill() {
    std::uint32_t state = 1;
    for (std::size_t i = 0; i < part_ * kShards; ++i) {
      state = state * 1664525 + 1013904223;
      const float value = static_cast<float>(state >> 8) * 0x1p-24F - 0.5F;
      for (std::size_t rank = 0; rank < kScatterRanks; ++rank) {
        inputs_[rank][i] = value * static_cast<float>(rank + 1);
      }
    }
  }

  double step() {
    const auto begin = std::chrono::steady_clock::now();
    double squares = 0;
    for (std::size_t shard = 0; shard < kShards; ++shard) {
      squares += team_.pass(part_, [&](std::size_t at, std::size_t count) {
        std::array<const float*, kScatterRanks> from{};
        for (std::size_t rank = 0; rank < kScatterRanks; ++rank) {
          from[rank] = inputs_[rank] + shard * part_ + at;
        }
        return double{scatter<Replicas>(from, holders(shard, at), count)};
      });
    }
    if (const double norm = std::sqrt(squares); max_norm_ > 0 && norm > max_norm_) {
      for (std::size_t shard = 0; shard < kShards; ++shard) {
        team_.pass(part_, [&](std::size_t at, std::size_t count) {
          scale<Replicas>(holders(shard, at), count, static_cast<float>(max_norm_ / norm));
          return 0.0;
        });
      }
    }
    norm_seen_ = squares;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  static constexpr std::size_t kShards = kScatterRanks / Replicas;

  std::array<float*, Replicas> holders(std::size_t shard, std::size_t at) const {
    std::array<float*, Replicas> found{};
    for (std::size_t replica = 0; replica < Replicas; ++replica) {
      found[replica] = outputs_[replica * kShards + shard] + at;
    }
    return found;
  }

  std::size_t part_;
  double max_norm_;                ///< 0: no clip
  volatile double norm_seen_ = 0;  ///< the sums of squares are work that has to be done
  std::array<float*, kScatterRanks> inputs_{};
  std::array<float*, kScatterRanks> outputs_{};
  Team team_;
};

}  // namespace gradsync::floors
