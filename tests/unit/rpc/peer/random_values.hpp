#pragma once
// Random values of which messages between daemons are made, and random parts of declarations.

#include "engine/peers/peer_message.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::rpc {

class RandomValues {
 public:
  explicit RandomValues(std::uint64_t seed) : bits_(seed) {}

  bool coin() { return bits_() % 2 == 0; }

  std::int64_t below(std::int64_t end) { return static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(end)); }

  /// Small and large ones.
  std::int64_t natural() { return static_cast<std::int64_t>((bits_() >> 1) >> below(63)); }

  std::uint32_t index() { return static_cast<std::uint32_t>(bits_() >> below(64)); }

  std::uint64_t epoch() { return 1 + bits_() % 0xFFFF'FFFF; }

  std::uint64_t word() { return std::max<std::uint64_t>(bits_(), 1); }

  /// Any finite double above 0.
  double positive() {
    const double value = std::bit_cast<double>(bits_() >> 1);
    return std::isfinite(value) && value > 0 ? value : 1.0 / static_cast<double>(1 + below(1000));
  }

  /// Any bits: infinities, NaN with any payload, -0.
  double any_double() {
    const double special[] = {
        0.0, -0.0, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), std::nan("")};
    return coin() ? special[below(5)] : std::bit_cast<double>(bits_());
  }

  std::string hex(std::size_t digits) {
    std::string text;
    while (text.size() < digits) {
      text += "0123456789abcdef"[below(16)];
    }
    return text;
  }

  std::string text(std::size_t least, std::int64_t most) {
    static constexpr const char* kCharacters[] = {
        "a", "Z", " ", "\"", "\\", "/", "é", "模", "𝒳", "\u2065", "\uFFFD", "."};
    std::string text;
    const auto wanted = std::max(least, static_cast<std::size_t>(below(coin() ? most + 1 : 8)));
    while (text.size() < wanted) {
      const std::string character = kCharacters[below(12)];
      text += text.size() + character.size() <= static_cast<std::size_t>(most) ? character : "b";
    }
    return text;
  }

  std::vector<std::string> names(std::int64_t most) {
    std::vector<std::string> names;
    for (std::int64_t left = below(most + 1); left > 0; --left) {
      names.push_back(text(0, 512));
    }
    return names;
  }

  std::vector<std::uint64_t> words() {
    std::vector<std::uint64_t> words;
    for (std::int64_t left = below(100); left > 0; --left) {
      words.push_back(coin() ? bits_() : 0);
    }
    return words;
  }

  std::vector<std::int64_t> ranks_below(std::int64_t end) {
    std::set<std::int64_t> ranks;
    for (std::int64_t left = below(20); left > 0; --left) {
      std::int64_t rank = below(end);
      for (std::int64_t length = below(8); length >= 0 && rank < end; --length) {
        ranks.insert(rank++);
      }
    }
    return {ranks.begin(), ranks.end()};
  }

  /// In any order.
  std::vector<std::int64_t> rank_list() {
    std::vector<std::int64_t> ranks = ranks_below(4096);
    std::shuffle(ranks.begin(), ranks.end(), bits_);
    return ranks;
  }

  template <typename T>
  std::optional<T> maybe(T value) {
    return coin() ? std::optional<T>(std::move(value)) : std::nullopt;
  }

  plan::PolicyOptions policy() {
    switch (below(5)) {
      case 0:
        return plan::FixedPolicy{};
      case 1:
        return plan::ObservePolicy{};
      case 2:
        return plan::PercentilePolicy{positive(), static_cast<std::int64_t>(bits_()), natural()};
      case 3:
        return plan::AutoPolicy{{positive(), static_cast<std::int64_t>(bits_()), natural()}};
      default:
        return plan::ZScorePolicy{positive(), positive(), natural()};
    }
  }

  plan::DeclareOptions options() {
    plan::DeclareOptions options;
    options.data_path = coin() ? plan::DataPath::Arena : plan::DataPath::Stats;
    options.accumulate = 1 + (natural() >> 1);
    options.norm_type = coin() ? std::numeric_limits<double>::infinity() : 1 + positive();
    options.mode = coin() ? plan::ClipMode::Strict : plan::ClipMode::Torch;
    for (std::int64_t left = below(4); left > 0; --left) {
      plan::ClipGroupOptions& group = options.clip.emplace_back();
      group.group = text(1, 512);
      group.clip.max_norm = maybe(positive());
      group.clip.zero_rule = static_cast<plan::ZeroRule>(below(3));
      group.clip.policy = policy();
      group.clip.nonfinite = static_cast<plan::NonfiniteAction>(below(4));
      group.clip.spike = static_cast<plan::SpikeAction>(below(3));
      group.clip.spike_factor = positive();
      for (std::int64_t watching = below(9); watching > 0; --watching) {
        group.clip.watch.push_back(policy());
      }
    }
    options.buckets = coin() ? plan::BucketRule::Default : plan::BucketRule::Torch;
    options.fingerprint = text(0, 64);
    options.partial_sums = coin() ? plan::PartialSums::Exact : plan::PartialSums::BFloat16;
    return options;
  }

  std::vector<std::int64_t> extents() {
    std::vector<std::int64_t> extents;
    for (std::int64_t left = below(coin() ? 33 : 3); left > 0; --left) {
      extents.push_back(natural());
    }
    return extents;
  }

  plan::Placement placement() {
    plan::Placement placement;
    for (std::int64_t left = below(3); left >= 0; --left) {
      placement.axes.push_back(text(0, 512));
    }
    switch (below(4)) {
      case 0:
        placement.kind = plan::Replicate{};
        break;
      case 1:
        placement.kind = plan::Shard{natural()};
        break;
      case 2:
        placement.kind = plan::Only{extents()};
        break;
      default:
        placement.kind =
            plan::Partial{coin() ? plan::ReduceOp::Sum : plan::ReduceOp::Mean, maybe(plan::Shard{natural()})};
    }
    return placement;
  }

  plan::TensorDeclaration tensor() {
    plan::TensorDeclaration tensor;
    tensor.name = text(1, 512);
    tensor.shape = extents();
    tensor.local_shape = coin() ? tensor.shape : extents();
    tensor.local_offset = maybe(extents());
    tensor.dtype = static_cast<plan::DType>(below(4));
    tensor.mesh = text(1, 512);
    for (std::int64_t left = below(4); left > 0; --left) {
      tensor.placements.push_back(placement());
    }
    tensor.divisor = maybe(positive());
    tensor.tied = maybe(text(1, 512));
    tensor.clip_group = text(1, 512);
    tensor.layer = maybe(text(1, 512));
    for (std::int64_t left = below(4); left > 0; --left) {
      tensor.split_order.push_back(text(0, 512));
    }
    return tensor;
  }

  std::mt19937_64 bits_;
};

}  // namespace gradsync::rpc
