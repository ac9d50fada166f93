#include "plan/merge/tensor_difference.hpp"

#include "plan/check/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gradsync::plan {

namespace {

std::string words(const std::string& text) { return fmt::format("'{}'", text); }

std::string words(DType dtype) { return std::string(name_of(dtype)); }

std::string words(DataPath path) { return std::string(name_of(path)); }

std::string words(BucketRule rule) { return std::string(name_of(rule)); }

std::string words(PartialSums sums) { return std::string(name_of(sums)); }

std::string words(ClipMode mode) { return std::string(name_of(mode)); }

std::string words(std::int64_t number) { return fmt::format("{}", number); }

std::string words(double number) { return fmt::format("{}", number); }

std::string words(const std::vector<std::int64_t>& numbers) { return words_of(numbers); }

std::string words(const std::vector<std::string>& names) { return words_of(names); }

std::string words(const std::optional<double>& number) { return words_of(number); }

std::string words(const std::optional<std::string>& name) { return words_of(name); }

template <typename T>
bool differs(Difference& difference, const char* field, const T& first, const T& other) {
  if (first == other) {
    return false;
  }
  difference = {field, words(first), words(other)};
  return true;
}

bool placements_differ(Difference& difference, const TensorDeclaration& first, const TensorDeclaration& other) {
  const auto at = [](const TensorDeclaration& tensor, std::size_t k) {
    return k < tensor.placements.size() ? words_of(tensor.placements[k]) : "none";
  };
  for (std::size_t k = 0; k < std::max(first.placements.size(), other.placements.size()); ++k) {
    const bool both = k < first.placements.size() && k < other.placements.size();
    if (!both || first.placements[k] != other.placements[k]) {
      difference = {fmt::format("placements[{}]", k), at(first, k), at(other, k)};
      return true;
    }
  }
  return false;
}

std::string words(const ClipGroupOptions& options) {
  return fmt::format("'{}': {}", options.group, words_of(options.clip));
}

/// Groups are compared by name, because clients send a mapping, and its keys have no order.
std::optional<Difference> clip_difference(
    const std::vector<ClipGroupOptions>& first, const std::vector<ClipGroupOptions>& other
) {
  const auto options_of = [](const std::vector<ClipGroupOptions>& options, const std::string& group) {
    return std::find_if(options.begin(), options.end(), [&](const auto& listed) { return listed.group == group; });
  };
  for (std::size_t k = 0; k < first.size(); ++k) {
    const auto same = options_of(other, first[k].group);
    if (same == other.end() || *same != first[k]) {
      return Difference{
          fmt::format("clip[{}]", k), words(first[k]), same == other.end() ? std::string("none") : words(*same)};
    }
  }
  for (std::size_t k = 0; k < other.size(); ++k) {
    if (options_of(first, other[k].group) == first.end()) {
      return Difference{fmt::format("clip[{}]", k), "none", words(other[k])};
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Difference> difference_of(const TensorDeclaration& first, const TensorDeclaration& other) {
  Difference found;
  const bool any =
      differs(found, "name", first.name, other.name) || differs(found, "shape", first.shape, other.shape) ||
      differs(found, "dtype", first.dtype, other.dtype) || differs(found, "mesh", first.mesh, other.mesh) ||
      placements_differ(found, first, other) || differs(found, "divisor", first.divisor, other.divisor) ||
      differs(found, "tied", first.tied, other.tied) ||
      differs(found, "clip_group", first.clip_group, other.clip_group) ||
      differs(found, "layer", first.layer, other.layer) ||
      differs(found, "split_order", first.split_order, other.split_order);
  return any ? std::optional(found) : std::nullopt;
}

std::optional<Difference> difference_of(const DeclareOptions& first, const DeclareOptions& other) {
  Difference found;
  if (differs(found, "data_path", first.data_path, other.data_path) ||
      differs(found, "accumulate", first.accumulate, other.accumulate) ||
      differs(found, "buckets", first.buckets, other.buckets) ||
      differs(found, "norm_type", first.norm_type, other.norm_type) || differs(found, "mode", first.mode, other.mode) ||
      differs(found, "fingerprint", first.fingerprint, other.fingerprint) ||
      differs(found, "partial_sums", first.partial_sums, other.partial_sums)) {
    return found;
  }
  return clip_difference(first.clip, other.clip);
}

}  // namespace gradsync::plan
