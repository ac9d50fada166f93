#include "device/transfer/node_plan.hpp"

#include "device/device_error.hpp"
#include "device/math/chunk_math.hpp"
#include "device/transfer/node_copies.hpp"
#include "device/transfer/piece_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace gradsync::device {

namespace {

/// A task of a pass over outputs: what a worker writes in a fraction of a millisecond.
constexpr std::uint64_t kHeldTaskElements = 64U << 10;

SumPlace place_of(const LaneSum& sum, const LaneNodes& nodes) {
  std::size_t here = 0;
  std::size_t all = 0;
  for (const std::vector<LaneMember>* side : {&sum.sources, &sum.destinations}) {
    for (const LaneMember& member : *side) {
      here += nodes.node_of_rank[member.rank] == nodes.node ? 1 : 0;
      ++all;
    }
  }
  if (here == all) {
    return SumPlace::Here;
  }
  const plan::TransferNode first = nodes.node_of_rank[sum.sources.front().rank];
  const auto elsewhere = [&](const LaneMember& member) { return nodes.node_of_rank[member.rank] != first; };
  const bool travels = std::ranges::any_of(sum.sources, elsewhere) || std::ranges::any_of(sum.destinations, elsewhere);
  return travels && here != 0 ? SumPlace::Travels : SumPlace::Elsewhere;
}

/// Leaves what is here. Returns, by LanePlan::sums, whether another node gets results of them.
std::vector<bool> find_places(LanePlan& layout, NodePlan& made) {
  std::vector<bool> written_elsewhere;
  const auto is_away = [&](const LaneMember& member) {
    return layout.nodes.node_of_rank[member.rank] != layout.nodes.node;
  };
  for (std::vector<LaneSum>& sums : layout.sums) {
    std::vector<SumPlace>& places = made.places.emplace_back();
    written_elsewhere.push_back(std::ranges::any_of(sums, [&](const LaneSum& sum) {
      return std::ranges::any_of(sum.destinations, is_away);
    }));
    for (LaneSum& sum : sums) {
      places.push_back(place_of(sum, layout.nodes));
      std::erase_if(sum.sources, is_away);
      std::erase_if(sum.destinations, is_away);
    }
    made.all_here.push_back(std::ranges::count(places, SumPlace::Here) == std::ssize(places));
    made.some_here.push_back(std::ranges::count(places, SumPlace::Here) != 0);
  }
  return written_elsewhere;
}

void number_sums(const LanePlan& layout, NodePlan& made) {
  std::size_t next = 0;
  made.has_input.resize(layout.tensors.size());
  for (const LanePart& part : layout.parts) {
    made.first_sum.push_back(next);
    next += layout.sums[part.sums].size();
    for (const LaneSum& sum : layout.sums[part.sums]) {
      for (const LaneMember& source : sum.sources) {
        const LaneTensor& tensor = layout.tensors[part.tensor];
        made.has_input[source.copy == 0 ? part.tensor : tensor.copies[source.copy - 1]] = true;
      }
    }
  }
  made.attempt.known.resize(next);
  made.attempt.replica_nonfinite = std::vector<std::atomic<std::uint64_t>>(layout.tensors.size());
  made.attempt.replica_nan = std::vector<std::atomic<std::uint64_t>>(layout.tensors.size());
}

/// Every output of every part that is on this node. Returns, by part, its chunks.
std::vector<ChunkRange> cut_outputs(const LanePlan& layout, NodePlan& made) {
  std::vector<ChunkRange> of_part(layout.parts.size());
  for (std::size_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
    const auto first_task = static_cast<std::uint32_t>(made.held_tasks.size());
    std::uint64_t in_task = kHeldTaskElements;  // the first chunk opens a task
    for (const std::uint32_t tensor : layout.buckets[bucket].tensors) {
      const LaneTensor& of = layout.tensors[tensor];
      for (std::uint32_t part = of.first_part; part < of.first_part + of.parts; ++part) {
        const auto is_written = [](const LaneSum& sum) { return !sum.destinations.empty(); };
        if (std::ranges::none_of(layout.sums[layout.parts[part].sums], is_written)) {
          continue;
        }
        of_part[part].begin = static_cast<std::uint32_t>(made.held.size());
        for_each_output_run(part, 0, layout.parts[part].elements, [&](const Chunk& chunk) {
          const auto at = static_cast<std::uint32_t>(made.held.size());
          if (in_task >= kHeldTaskElements) {
            made.held_tasks.push_back({at, at});
            in_task = 0;
          }
          made.held.push_back(chunk);
          made.held_tasks.back().end = at + 1;
          in_task += chunk.count();
        });
        of_part[part].end = static_cast<std::uint32_t>(made.held.size());
      }
    }
    made.buckets[bucket].held_tasks = {first_task, static_cast<std::uint32_t>(made.held_tasks.size())};
  }
  return of_part;
}

void place_classes(
    const LanePlan& layout,
    const std::vector<bool>& written_elsewhere,
    const std::vector<ChunkRange>& held,
    NodePlan& made
) {
  made.hashed.resize(layout.parts.size());
  bool any = false;
  for (const std::vector<StatsBox>& boxes : layout.nodes.classes) {
    std::vector<ComparedPart>& parts = made.classes.emplace_back();
    for (const auto& [tensor, number] : boxes) {
      const std::uint32_t part = layout.tensors[tensor].first_part + number;
      made.hashed[part] = written_elsewhere[layout.parts[part].sums];
      any = any || made.hashed[part];
      parts.push_back({part, held[part]});
    }
    made.whole_hashes.push_back(hash_of_whole_class(boxes.size()));
  }
  made.attempt.hashes.resize(any ? made.held.size() : 0);
  made.attempt.compared.resize(layout.buckets.size());
}

void name_messages(const std::vector<plan::TransferMessage>& messages, bool received, NodeBucket& made) {
  std::size_t at = 0;
  for (std::uint32_t block = 0; block < made.blocks.size(); ++block) {
    const auto begin = static_cast<std::uint32_t>(at);
    for (; at < messages.size() && messages[at].block == made.blocks[block].block; ++at) {
      made.block_of[{messages[at].peer, messages[at].payload, received}].push_back(block);
    }
    (received ? made.blocks[block].receives : made.blocks[block].sends) = {begin, static_cast<std::uint32_t>(at)};
  }
}

void add_chunks(
    const LanePlan& layout,
    const plan::BucketTransfer& transfer,
    const plan::TransferBlock& block,
    bool outputs,
    std::vector<BlockChunk>& chunks
) {
  std::uint64_t at = 0;
  for (std::uint32_t piece = block.first_piece; piece < block.first_piece + block.pieces; ++piece) {
    const plan::TransferPiece& of = transfer.pieces[piece];
    const std::uint32_t part = layout.tensors[of.tensor].first_part + of.part;
    const auto add = [&](const Chunk& chunk) {
      chunks.push_back({chunk, piece, kNotCounted, at + chunk.first - of.first});
    };
    if (outputs) {
      for_each_output_run(part, of.first, of.elements, add);
    } else {
      for_each_input_run(layout.parts[part], part, of.first, of.elements, add);
    }
    at += of.elements;
  }
}

NodeBucket make_bucket(const LanePlan& layout, const plan::BucketTransfer& transfer) {
  NodeBucket made;
  const plan::TransferNode node = layout.nodes.node;
  made.messages = plan::transfer_of_node(transfer, node);
  const auto end_of = [](const std::vector<BlockChunk>& chunks) { return static_cast<std::uint32_t>(chunks.size()); };
  for (std::uint32_t index = 0; index < transfer.blocks.size(); ++index) {
    const plan::TransferBlock& block = transfer.blocks[index];
    const plan::TransferStream& stream = transfer.streams[block.stream];
    NodeBlock here{index, block.owner == node, plan::staging_bytes_of(transfer, block, node), {}, {}, {}, {}};
    if (here.staging_bytes == 0) {
      continue;
    }
    here.inputs.begin = end_of(made.inputs);
    if (std::ranges::binary_search(stream.sources, node)) {
      add_chunks(layout, transfer, block, false, made.inputs);
    }
    here.inputs.end = end_of(made.inputs);
    here.outputs.begin = end_of(made.outputs);
    if (std::ranges::binary_search(stream.destinations, node)) {
      add_chunks(layout, transfer, block, true, made.outputs);
    }
    here.outputs.end = end_of(made.outputs);
    made.blocks.push_back(here);
  }
  name_messages(made.messages.sends, false, made);
  name_messages(made.messages.receives, true, made);
  return made;
}

}  // namespace

std::unique_ptr<NodePlan> make_node_plan(LanePlan& layout) {
  auto made = std::make_unique<NodePlan>();
  made->node = layout.nodes.node;
  const std::vector<bool> written_elsewhere = find_places(layout, *made);
  number_sums(layout, *made);
  std::uint64_t needed = 0;
  for (const plan::BucketTransfer& transfer : layout.nodes.transfers) {
    const NodeBucket& bucket = made->buckets.emplace_back(make_bucket(layout, transfer));
    for (const auto& [name, blocks] : bucket.block_of) {
      made->peers.push_back(std::get<plan::TransferNode>(name));
    }
    std::uint64_t largest = 0;
    for (const NodeBlock& block : bucket.blocks) {
      largest = std::max(largest, block.staging_bytes);
      needed += block.staging_bytes;
    }
    made->staging_bytes = std::max(made->staging_bytes, largest);
    for (const plan::TransferStream& stream : transfer.streams) {
      made->most_sources = std::max(made->most_sources, stream.sources.size());
    }
  }
  std::ranges::sort(made->peers);
  made->peers.erase(std::unique(made->peers.begin(), made->peers.end()), made->peers.end());
  check_fit(made->staging_bytes <= layout.nodes.staging_bytes, [&] {
    return fmt::format(
        "a block takes {} bytes of staging memory, and nodes.staging_bytes is {}",
        made->staging_bytes,
        layout.nodes.staging_bytes
    );
  });
  made->staging_bytes = std::min(layout.nodes.staging_bytes, needed);
  place_classes(layout, written_elsewhere, cut_outputs(layout, *made), *made);
  return made;
}

void place_counted_chunks(const LanePlan& layout, NodePlan& nodes, ChunkTable& table) {
  std::vector<std::pair<std::uint32_t, BlockChunk*>> counted;  // by tensor, else in the order of the work
  for (std::size_t number = 0; number < nodes.buckets.size(); ++number) {
    NodeBucket& bucket = nodes.buckets[number];
    for (const NodeBlock& block : bucket.blocks) {
      for (std::uint32_t at = block.outputs.begin; block.owned && at < block.outputs.end; ++at) {
        const plan::TransferPiece& piece = layout.nodes.transfers[number].pieces[bucket.outputs[at].piece];
        if (piece.sum == 0) {
          counted.emplace_back(piece.tensor, &bucket.outputs[at]);
        }
      }
    }
  }
  std::ranges::stable_sort(counted, {}, [](const auto& each) { return each.first; });
  check_fit(table.chunks.size() + counted.size() < kNotCounted, [] {
    return std::string("it has more than 2^32 chunks");
  });
  nodes.counted.resize(layout.tensors.size());
  nodes.first_counted = static_cast<std::uint32_t>(table.chunks.size());
  for (const auto& [tensor, chunk] : counted) {
    ChunkRange& range = nodes.counted[tensor];
    chunk->counted = static_cast<std::uint32_t>(table.chunks.size());
    range.begin = range.end == 0 ? chunk->counted : range.begin;
    range.end = chunk->counted + 1;
    table.chunks.push_back(chunk->chunk);
  }
}

}  // namespace gradsync::device
