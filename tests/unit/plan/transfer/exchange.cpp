#include "unit/plan/transfer/exchange.hpp"

#include <algorithm>

namespace gradsync::plan {

Exchange::Exchange(const TransferWorld& world, const TransferOptions& options, std::uint64_t seed)
    : sent(world.nodes()), world_(world), staging_bytes_(options.staging_bytes), random_(seed), nodes_(world.nodes()) {
  for (std::uint32_t bucket = 0; bucket < world.plan.buckets.size(); ++bucket) {
    programs.push_back(make_bucket_transfer(world.plan, bucket, world.node_of_rank, options));
    load(bucket);
  }
}

void Exchange::run() {
  for (TransferNode node = 0; node < nodes_.size(); ++node) {
    add_what_stays(node);
  }
  std::vector<std::pair<TransferNode, const Link*>> possible;  // a node that begins a block, or a message that arrives
  do {
    possible.clear();
    for (TransferNode node = 0; node < nodes_.size(); ++node) {
      if (can_begin(node)) {
        possible.emplace_back(node, nullptr);
      }
    }
    for (const auto& [link, queue] : links_) {
      if (!queue.empty() && nodes_[link.to].works.contains(queue.front().key)) {
        possible.emplace_back(link.to, &link);
      }
    }
    if (!possible.empty()) {
      const auto [node, link] = possible[random_() % possible.size()];
      link == nullptr ? begin(node) : arrive(*link);
    }
  } while (!possible.empty() && !testing::Test::HasFatalFailure());
  for (const Node& node : nodes_) {
    EXPECT_TRUE(node.next == node.order.size() && node.works.empty()) << "a node waits for ever";
    EXPECT_EQ(node.staged, 0U);
  }
  write_zeros();
}

const TransferStream& Exchange::stream(const Key& key) const { return programs[key.first].streams[block(key).stream]; }

std::uint64_t Exchange::staging(const Key& key, TransferNode node) const {
  return staging_bytes_of(programs[key.first], block(key), node);
}

bool Exchange::can_begin(TransferNode node) const {
  const Node& at = nodes_[node];
  return at.next < at.order.size() && at.staged + staging(at.order[at.next], node) <= staging_bytes_;
}

DType Exchange::format(const Key& key, Payload payload) const {
  return payload == Payload::Partial ? programs[key.first].partial : programs[key.first].result;
}

void Exchange::load(std::uint32_t bucket) {
  for (TransferNode number = 0; number < nodes_.size(); ++number) {
    Node& node = nodes_[number];
    const NodeTransfer mine = transfer_of_node(programs[bucket], number);
    for (const TransferMessage& message : mine.sends) {
      node.to_send[{number, message.peer, message.payload}].push_back({{bucket, message.block}, message});
      ++node.messages[{bucket, message.block}];
    }
    for (const TransferMessage& message : mine.receives) {
      node.to_receive[{message.peer, number, message.payload}].push_back({{bucket, message.block}, message});
      ++node.messages[{bucket, message.block}];
    }
    for (std::uint32_t index = 0; index < programs[bucket].blocks.size(); ++index) {
      if (staging({bucket, index}, number) != 0) {
        node.order.emplace_back(bucket, index);
      }
      if (programs[bucket].blocks[index].owner == number) {
        node.owned.emplace_back(bucket, index);
      }
    }
  }
}

void Exchange::begin(TransferNode number) {
  Node& node = nodes_[number];
  const Key key = node.order[node.next++];
  node.staged += staging(key, number);
  most_staged = std::max(most_staged, node.staged);
  const bool owns = block(key).owner == number;
  Work& work = node.works[key];
  work.open = node.messages[key] + (owns ? 1 : 0);
  if (owns) {
    work.partial_sums[number] = partial_sum(key, number);
  } else if (std::ranges::binary_search(stream(key).sources, number)) {
    send({number, block(key).owner, Payload::Partial}, key, partial_sum(key, number));
  }
}

Exchange::Values Exchange::partial_sum(const Key& key, TransferNode node) const {
  Values made;
  for (const TransferPiece& piece : programs[key.first].pieces_of(block(key))) {
    const PlannedPart& part = world_.part(piece.tensor, piece.part);
    const RankSum& sum = world_.sum(piece.tensor, piece.part, piece.sum);
    const std::vector<Memory> sources = world_.contributors(piece.tensor, sum, node);
    made.contributed.push_back(!sources.empty());
    for (std::uint64_t i = piece.first; i < piece.first + piece.elements; ++i) {
      double value = sources.empty() ? -0.0 : world_.input(sources.front(), part, i);
      for (std::size_t k = 1; k < sources.size(); ++k) {
        value = added(programs[key.first].sum, value, world_.input(sources[k], part, i));
      }
      made.values.push_back(value);
    }
  }
  return made;
}

void Exchange::send(const Link& link, const Key& key, const Values& values) {
  std::deque<Message>& expected = nodes_[link.from].to_send[link];
  ASSERT_FALSE(expected.empty()) << "a message that is not in the program of its sender";
  Message message = std::move(expected.front());
  expected.pop_front();
  ASSERT_EQ(message.key, key) << "messages leave in the order of the program";
  const DType dtype = format(key, link.payload);
  const std::size_t flags = values.values.size() * size_of(dtype);
  message.bytes.resize(flags + (values.contributed.size() + 7) / 8);
  for (std::size_t i = 0; i < values.values.size(); ++i) {
    write_value(dtype, message.bytes.data() + i * size_of(dtype), values.values[i]);
  }
  for (std::size_t i = 0; i < values.contributed.size(); ++i) {
    message.bytes[flags + i / 8] |= std::byte{values.contributed[i]} << i % 8;
  }
  ASSERT_EQ(message.named.bytes, message.bytes.size());
  SentBytes& count = sent[link.from];
  count.values += flags;
  count.flags += message.bytes.size() - flags;
  count.messages += 1;
  count.pieces += values.contributed.size();
  note_trip(link, key);
  links_[link].push_back(std::move(message));
}

void Exchange::note_trip(const Link& link, const Key& key) {
  for (const TransferPiece& piece : programs[key.first].pieces_of(block(key))) {
    std::vector<int>& times = trips[{link.payload, link.from, link.to, piece.tensor, piece.part, piece.sum}];
    times.resize(world_.part(piece.tensor, piece.part).elements);
    for (std::uint64_t i = piece.first; i < piece.first + piece.elements; ++i) {
      ++times.at(i);
    }
  }
}

void Exchange::arrive(const Link& link) {
  const Message message = std::move(links_[link].front());
  links_[link].pop_front();
  std::deque<Message>& expected = nodes_[link.to].to_receive[link];
  ASSERT_FALSE(expected.empty()) << "a message that is not in the program of its receiver";
  ASSERT_EQ(expected.front().key, message.key) << "both ends have one order";
  ASSERT_EQ(expected.front().named.number, message.named.number);
  ASSERT_EQ(expected.front().named.bytes, message.bytes.size());
  expected.pop_front();
  Values values = read(message);
  if (link.payload == Payload::Partial) {
    nodes_[link.to].works.at(message.key).partial_sums[link.from] = std::move(values);
  } else {
    std::size_t at = 0;
    std::size_t number = 0;
    for (const TransferPiece& piece : programs[message.key.first].pieces_of(block(message.key))) {
      write(link.to, piece, values.contributed[number++], values.values.data() + at);
      at += piece.elements;
    }
  }
  done_one(link.from, message.key);
  done_one(link.to, message.key);
  add_up(link.to);
}

Exchange::Values Exchange::read(const Message& message) const {
  const DType dtype = format(message.key, message.named.payload);
  const TransferBlock& of = block(message.key);
  Values values;
  for (std::size_t i = 0; i < of.elements; ++i) {
    values.values.push_back(read_value(dtype, message.bytes.data() + i * size_of(dtype)));
  }
  for (std::size_t i = 0; i < of.pieces; ++i) {
    const std::byte flags = message.bytes.at(of.elements * size_of(dtype) + i / 8);
    values.contributed.push_back((flags >> i % 8 & std::byte{1}) != std::byte{0});
  }
  return values;
}

/// An owner finishes its blocks in their order, whichever has all partial sums first.
void Exchange::add_up(TransferNode number) {
  Node& node = nodes_[number];
  for (; node.next_owned < node.owned.size(); ++node.next_owned) {
    const Key key = node.owned[node.next_owned];
    const auto work = node.works.find(key);
    if (work == node.works.end() || work->second.partial_sums.size() != stream(key).sources.size()) {
      return;
    }
    finish(number, key, work->second.partial_sums);
    done_one(number, key);
  }
}

void Exchange::finish(TransferNode number, const Key& key, const std::map<TransferNode, Values>& partial_sums) {
  const BucketTransfer& program = programs[key.first];
  Values result = partial_sums.at(stream(key).sources.front());
  for (const TransferNode source : std::span(stream(key).sources).subspan(1)) {
    const Values& partial = partial_sums.at(source);
    for (std::size_t i = 0; i < result.values.size(); ++i) {
      result.values[i] = added(program.sum, result.values[i], partial.values[i]);
    }
    for (std::size_t i = 0; i < result.contributed.size(); ++i) {
      result.contributed[i] = result.contributed[i] || partial.contributed[i];
    }
  }
  for (double& value : result.values) {
    value = rounded_to(program.result, divided(program.sum, value, world_.plan.buckets[key.first].divisor));
  }
  std::size_t at = 0;
  std::size_t piece_number = 0;
  for (const TransferPiece& piece : program.pieces_of(block(key))) {
    write(number, piece, result.contributed[piece_number++], result.values.data() + at);
    at += piece.elements;
  }
  for (const TransferNode destination : stream(key).destinations) {
    if (destination != number) {
      send({number, destination, Payload::Result}, key, result);
    }
  }
}

void Exchange::done_one(TransferNode number, const Key& key) {
  Work& work = nodes_[number].works.at(key);
  if (--work.open == 0) {
    nodes_[number].staged -= staging(key, number);
    nodes_[number].works.erase(key);
  }
}

/// Writes a result to the ranks of a node that get it. Where nobody contributed, whether the tensor is absent is not
/// known yet.
void Exchange::write(TransferNode node, const TransferPiece& piece, bool contributed, const double* values) {
  if (!contributed) {
    empty_.emplace_back(node, piece);
    return;
  }
  for (const SumMember& destination : world_.sum(piece.tensor, piece.part, piece.sum).destinations) {
    if (world_.node_of_rank[destination.rank] == node) {
      std::vector<double>& output = outputs[{world_.memory(piece.tensor, destination), piece.tensor, piece.part}];
      output.resize(world_.part(piece.tensor, piece.part).elements, kNotWritten);
      std::copy_n(values, piece.elements, output.begin() + static_cast<std::ptrdiff_t>(piece.first));
    }
  }
}

void Exchange::add_what_stays(TransferNode node) {
  for (std::uint32_t tensor = 0; tensor < world_.plan.tensors.size(); ++tensor) {
    const Bucket& bucket = world_.plan.buckets[world_.plan.tensors[tensor].bucket];
    const DType sum_type = bucket.dtype == DType::Float64 ? DType::Float64 : DType::Float32;
    for (std::uint32_t number = 0; number < world_.plan.tensors[tensor].parts.size(); ++number) {
      const PlannedPart& part = world_.part(tensor, number);
      for (std::uint32_t k = 0; part.elements != 0 && k < world_.plan.sums[part.sums].size(); ++k) {
        const RankSum& sum = world_.sum(tensor, number, k);
        if (travels(sum, world_.node_of_rank) || world_.node_of_rank[sum.sources.front().rank] != node) {
          continue;
        }
        const std::vector<Memory> sources = world_.contributors(tensor, sum, node);
        std::vector<double> values(part.elements, -0.0);
        for (std::uint64_t i = 0; i < part.elements; ++i) {
          for (const Memory& source : sources) {
            values[i] = added(sum_type, values[i], world_.input(source, part, i));
          }
          values[i] = rounded_to(bucket.dtype, divided(sum_type, values[i], bucket.divisor));
        }
        write(node, {tensor, number, k, 0, part.elements}, !sources.empty(), values.data());
      }
    }
  }
}

/// Whether any node says that a rank of its own contributed to any sum of the tensor.
bool Exchange::present(std::uint32_t tensor) const {
  bool some = false;
  for (TransferNode node = 0; node < nodes_.size(); ++node) {
    for (const PlannedPart& part : world_.plan.tensors[tensor].parts) {
      for (const RankSum& sum : world_.plan.sums[part.sums]) {
        some = some || !world_.contributors(tensor, sum, node).empty();
      }
    }
  }
  return some;
}

void Exchange::write_zeros() {
  const std::vector<std::pair<TransferNode, TransferPiece>> empty = std::move(empty_);
  for (const auto& [node, piece] : empty) {
    if (present(piece.tensor)) {
      write(node, piece, true, std::vector<double>(piece.elements).data());
    }
  }
}

}  // namespace gradsync::plan
