#include "device/transfer/transfer_check.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace gradsync::device {

namespace {

using Nodes = std::vector<plan::TransferNode>;

Nodes nodes_of(const std::vector<LaneMember>& members, const LaneNodes& nodes) {
  Nodes found;
  for (const LaneMember& member : members) {
    found.push_back(nodes.node_of_rank[member.rank]);
  }
  std::ranges::sort(found);
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

/// Both ascending, without doubles.
struct SumNodes {
  Nodes sources;
  Nodes destinations;

  [[nodiscard]] bool travels() const { return sources.size() > 1 || sources != destinations; }
};

class TransferCheck {
 public:
  explicit TransferCheck(const LanePlan& layout) : layout_(layout) {
    for (const std::vector<LaneSum>& sums : layout.sums) {
      std::vector<SumNodes>& nodes = nodes_of_sums_.emplace_back();
      for (const LaneSum& sum : sums) {
        nodes.push_back({nodes_of(sum.sources, layout.nodes), nodes_of(sum.destinations, layout.nodes)});
      }
    }
  }

  void check(std::size_t bucket) {
    bucket_ = bucket;
    const plan::BucketTransfer& transfer = layout_.nodes.transfers[bucket];
    check_formats(transfer);
    for (std::size_t stream = 0; stream < transfer.streams.size(); ++stream) {
      check_stream(transfer.streams[stream], stream);
    }
    covered_.clear();
    std::uint64_t pieces = 0;
    for (std::size_t block = 0; block < transfer.blocks.size(); ++block) {
      check_block(transfer, block, pieces);
      pieces += transfer.blocks[block].pieces;
    }
    fits(pieces == transfer.pieces.size(), [&] {
      return fmt::format("{} pieces of {} are in blocks", pieces, transfer.pieces.size());
    });
    check_coverage();
  }

 private:
  using Sum = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;  ///< tensor, part, sum
  using Span = std::pair<std::uint64_t, std::uint64_t>;                 ///< first element and the one behind the last

  template <typename Message>
  void fits(bool good, const Message& message) const {
    check_fit(good, [&] { return fmt::format("nodes.transfers[{}]: ", bucket_) + message(); });
  }

  void check_formats(const plan::BucketTransfer& transfer) const {
    const plan::DType dtype = layout_.buckets[bucket_].dtype;
    const plan::DType sum = dtype == plan::DType::Float64 ? plan::DType::Float64 : plan::DType::Float32;
    const bool rounded = transfer.partial == plan::DType::BFloat16 && sum == plan::DType::Float32;
    fits(
        transfer.bucket == bucket_ && transfer.result == dtype && transfer.sum == sum &&
            (transfer.partial == sum || rounded),
        [&] {
          return fmt::format(
              "it is for bucket {}, or its formats are not those of gradients in {}",
              transfer.bucket,
              plan::name_of(dtype)
          );
        }
    );
  }

  void check_stream(const plan::TransferStream& stream, std::size_t number) const {
    const auto ascend = [](const Nodes& nodes) {
      return std::ranges::adjacent_find(nodes, std::greater_equal<>()) == nodes.end();
    };
    fits(
        stream.sources.size() > 1 && !stream.destinations.empty() && ascend(stream.sources) &&
            ascend(stream.destinations) && std::ranges::includes(stream.sources, stream.destinations),
        [&] {
          return fmt::format(
              "stream {} has sources that do not ascend, or are one alone, or destinations that are no sources", number
          );
        }
    );
  }

  void check_block(const plan::BucketTransfer& transfer, std::size_t number, std::uint64_t first_piece) {
    const plan::TransferBlock& block = transfer.blocks[number];
    fits(
        block.stream < transfer.streams.size() &&
            std::ranges::binary_search(transfer.streams[block.stream].destinations, block.owner),
        [&] {
          return fmt::format(
              "block {} is of stream {}, or node {} owns it and is no destination", number, block.stream, block.owner
          );
        }
    );
    fits(
        block.pieces != 0 && block.first_piece == first_piece && block.pieces <= transfer.pieces.size() - first_piece,
        [&] {
          return fmt::format(
              "block {} has {} pieces from {} on, {} come before it and there are {}",
              number,
              block.pieces,
              block.first_piece,
              first_piece,
              transfer.pieces.size()
          );
        }
    );
    std::uint64_t elements = 0;
    for (const plan::TransferPiece& piece : transfer.pieces_of(block)) {
      check_piece(transfer.streams[block.stream], piece, number);
      elements += piece.elements;  // of parts whose sizes were checked, hence far from 2^64
    }
    fits(elements == block.elements, [&] {
      return fmt::format("block {} has {} elements, its pieces have {}", number, block.elements, elements);
    });
  }

  void check_piece(const plan::TransferStream& stream, const plan::TransferPiece& piece, std::size_t block) {
    const auto misfit = [&] {
      return fmt::format(
          "block {} has elements {} to {} of tensor {}, part {}, sum {}, which do not exist or are of other nodes",
          block,
          piece.first,
          piece.first + piece.elements,
          piece.tensor,
          piece.part,
          piece.sum
      );
    };
    fits(piece.tensor < layout_.tensors.size(), misfit);
    const LaneTensor& tensor = layout_.tensors[piece.tensor];
    fits(tensor.bucket == bucket_ && piece.part < tensor.parts, misfit);
    const LanePart& part = layout_.parts[tensor.first_part + piece.part];
    fits(piece.sum < layout_.sums[part.sums].size(), misfit);
    const SumNodes& nodes = nodes_of_sums_[part.sums][piece.sum];
    fits(nodes.sources == stream.sources && nodes.destinations == stream.destinations, misfit);
    fits(piece.elements != 0 && piece.first <= part.elements && piece.elements <= part.elements - piece.first, misfit);
    covered_[{piece.tensor, piece.part, piece.sum}].emplace_back(piece.first, piece.first + piece.elements);
  }

  void check_coverage() {
    for (const std::uint32_t tensor : layout_.buckets[bucket_].tensors) {
      const LaneTensor& of = layout_.tensors[tensor];
      for (std::uint32_t part = 0; part < of.parts; ++part) {
        const LanePart& held = layout_.parts[of.first_part + part];
        for (std::uint32_t sum = 0; held.elements != 0 && sum < nodes_of_sums_[held.sums].size(); ++sum) {
          if (nodes_of_sums_[held.sums][sum].travels()) {
            check_covered({tensor, part, sum}, held.elements);
          }
        }
      }
    }
  }

  void check_covered(const Sum& sum, std::uint64_t elements) {
    std::vector<Span>& spans = covered_[sum];
    std::ranges::sort(spans);
    std::uint64_t end = 0;
    bool gap = false;
    for (const Span& span : spans) {
      gap = gap || span.first != end;
      end = span.second;
    }
    fits(!gap && end == elements, [&] {
      const auto [tensor, part, number] = sum;
      return fmt::format(
          "sum {} of tensor {}, part {}, is not in its pieces once and as a whole", number, tensor, part
      );
    });
  }

  const LanePlan& layout_;
  std::size_t bucket_ = 0;
  std::vector<std::vector<SumNodes>> nodes_of_sums_;
  std::map<Sum, std::vector<Span>> covered_;
};

/// Boxes that ascend, of parts with several sums, a destination of which is here.
void check_class(const LanePlan& layout, std::size_t number) {
  const std::vector<StatsBox>& boxes = layout.nodes.classes[number];
  const auto is_here = [&](const LaneSum& sum) {
    return std::ranges::any_of(sum.destinations, [&](const LaneMember& member) {
      return layout.nodes.node_of_rank[member.rank] == layout.nodes.node;
    });
  };
  for (std::size_t at = 0; at < boxes.size(); ++at) {
    const auto [tensor, box] = boxes[at];
    bool good =
        (at == 0 || boxes[at - 1] < boxes[at]) && tensor < layout.tensors.size() && box < layout.tensors[tensor].parts;
    if (good) {
      const LanePart& part = layout.parts[layout.tensors[tensor].first_part + box];
      const std::vector<LaneSum>& sums = layout.sums[part.sums];
      good = part.elements != 0 && sums.size() > 1 && std::ranges::any_of(sums, is_here);
    }
    check_fit(good, [&] {
      return fmt::format(
          "nodes.classes[{}] has part {} of tensor {}, which is not behind the one before it, does not exist, or has "
          "no results of several sums to compare here",
          number,
          box,
          tensor
      );
    });
  }
}

}  // namespace

void check_nodes(const LanePlan& layout, const std::vector<BufferView>& buffers) {
  const LaneNodes& nodes = layout.nodes;
  check_fit(nodes.node_of_rank.size() == buffers.size(), [&] {
    return fmt::format("{} ranks of {} have a node", nodes.node_of_rank.size(), buffers.size());
  });
  bool here = false;
  for (std::size_t rank = 0; rank < buffers.size(); ++rank) {
    const plan::TransferNode node = nodes.node_of_rank[rank];
    check_fit(node < buffers.size(), [&] {
      return fmt::format("rank {} is on node {}, and a job of {} ranks has no more nodes", rank, node, buffers.size());
    });
    const bool held = buffers[rank].data != nullptr;
    check_fit(held == (node == nodes.node), [&] {
      return fmt::format(
          "rank {} is on node {}, this is node {}, and it has {} buffer here", rank, node, nodes.node, held ? "a" : "no"
      );
    });
    here = here || held;
  }
  check_fit(here, [&] { return fmt::format("no rank is on node {}", nodes.node); });
  check_fit(nodes.transfers.size() == layout.buckets.size(), [&] {
    return fmt::format("{} transfers are given for {} buckets", nodes.transfers.size(), layout.buckets.size());
  });
}

void check_transfers(const LanePlan& layout) {
  TransferCheck check(layout);
  for (std::size_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
    check.check(bucket);
  }
  for (std::size_t number = 0; number < layout.nodes.classes.size(); ++number) {
    check_class(layout, number);
  }
}

}  // namespace gradsync::device
