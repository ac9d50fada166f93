#include "plan/canonical_text.hpp"

#include "base/text/hash.hpp"
#include "plan/check/words.hpp"
#include "plan/interrupt.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <optional>

namespace gradsync::plan {

namespace {

class Writer {
 public:
  void put(std::string_view text) {
    put(static_cast<std::int64_t>(text.size()));
    text_.append(text);
  }

  void put(std::int64_t number) {
    const fmt::format_int digits(number);
    text_.append(digits.data(), digits.size());
    text_.push_back(';');
  }

  void put(double number) { text_.append(hex64(std::bit_cast<std::uint64_t>(number))).push_back(';'); }

  template <typename T>
  void put(const std::optional<T>& value) {
    text_.push_back(value ? '+' : '-');
    if (value) {
      put(*value);
    }
  }

  template <typename T>
  void put(const std::vector<T>& list) {
    put(static_cast<std::int64_t>(list.size()));
    for (const T& item : list) {
      put(item);
    }
  }

  void put(const std::string& text) { put(std::string_view(text)); }

  void put(const Axis& axis) {
    put(axis.name);
    put(axis.size);
  }

  void put(const Mesh& mesh) {
    put(mesh.name);
    put(mesh.axes);
    put(mesh.sync_order);
  }

  void put(const Shard& shard) {
    text_.push_back('s');
    put(shard.dim);
  }

  void put(const Placement& placement) {
    put(placement.axes);
    std::visit([this](const auto& kind) { put_kind(kind); }, placement.kind);
  }

  void put(const ClipGroupOptions& options) {
    put(options.group);
    put(options.clip.max_norm);
    put(name_of(options.clip.zero_rule));
    if (options.clip !=
        ClipOptions{options.clip.max_norm, options.clip.zero_rule}) {  // digests from before policies hold
      put(words_of(options.clip));
    }
  }

  void put(const DeclareOptions& options) {
    put(name_of(options.data_path));
    put(options.accumulate);
    put(options.norm_type);
    put(name_of(options.mode));
    put(options.clip);
    if (options.partial_sums != PartialSums::Exact) {  // digests from before there was a choice hold
      put(name_of(options.partial_sums));
    }
  }

  /// Writes the fields that are equal on all holders.
  void put_common(const TensorDeclaration& tensor) {
    put(tensor.name);
    put(tensor.shape);
    put(name_of(tensor.dtype));
    put(tensor.mesh);
    put(tensor.placements);
    put(tensor.divisor);
    put(tensor.tied);
    put(tensor.clip_group);
    put(tensor.layer);
    put(tensor.split_order);
  }

  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  void put_kind(const Replicate&) { text_.push_back('r'); }

  void put_kind(const Shard& shard) { put(shard); }

  void put_kind(const Only& only) {
    text_.push_back('o');
    put(only.at);
  }

  void put_kind(const Partial& partial) {
    text_.push_back('p');
    put(name_of(partial.op));
    put(partial.to_shard);
  }

  std::string text_;
};

}  // namespace

std::string canonical_text(const DeclareOptions& options) {
  Writer writer;
  writer.put(std::string_view("gradsync options 2"));
  writer.put(options);
  return writer.take();
}

std::string canonical_text(const TensorDeclaration& tensor) {
  Writer writer;
  writer.put_common(tensor);
  writer.put(tensor.local_shape);
  writer.put(tensor.local_offset);
  return writer.take();
}

std::string canonical_text(
    Declarations by_rank, const Merged& merged, const std::vector<Mesh>& meshes, BucketSizes sizes
) {
  Writer writer;
  writer.put(std::string_view("gradsync merged plan 2"));
  writer.put(static_cast<std::int64_t>(by_rank.size()));
  if (by_rank.front()->options.data_path == DataPath::Arena) {
    // A rule that has its own sizes is named instead of them. No number looks like a name, so the two cannot be
    // confused.
    if (by_rank.front()->options.buckets == BucketRule::Torch) {
      writer.put(name_of(BucketRule::Torch));
    } else {
      writer.put(std::bit_cast<std::int64_t>(sizes.first_bytes));
      writer.put(std::bit_cast<std::int64_t>(sizes.bytes));
    }
  }
  writer.put(by_rank.front()->options);
  writer.put(meshes);
  writer.put(static_cast<std::int64_t>(merged.tensors.size()));
  for (const MergedTensor& tensor : merged.tensors) {
    interruption_point();
    writer.put_common(declaration_of(by_rank, tensor.rank, tensor.row));
    writer.put(static_cast<std::int64_t>(tensor.holdings.size()));
    for (const Holding& holding : tensor.holdings) {
      writer.put(static_cast<std::int64_t>(holding.rank));
      writer.put(static_cast<std::int64_t>(holding.row));
      // Without an offset the local shape follows from the placements.
      const TensorDeclaration& held = declaration_of(by_rank, holding.rank, holding.row);
      writer.put(held.local_offset);
      if (held.local_offset) {
        writer.put(held.local_shape);
      }
    }
  }
  return writer.take();
}

}  // namespace gradsync::plan
