#include "unit/engine/peers/arena/joint_lane.hpp"

#include "device/math/norm_totals.hpp"

#include <fmt/format.h>

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace gradsync::engine {

namespace {

/// Before the values of a message.
struct Frame {
  std::uint64_t tag = 0;
  std::uint32_t bucket = 0;
  std::uint32_t number = 0;
  std::uint32_t payload = 0;
  std::uint32_t bytes = 0;
};

void require(bool holds, const std::string& what) {
  if (!holds) {
    throw std::logic_error("a lane is used wrongly: " + what);
  }
}

int socket_of(const device::NodeConnection& connection, plan::Payload payload) {
  return payload == plan::Payload::Partial ? connection.partials.get() : connection.results.get();
}

/// Where an element of the part lies in the input.
std::uint64_t input_element(const device::LanePart& part, std::uint64_t element) {
  std::uint64_t at = part.first + element % part.run;
  std::uint64_t run = element / part.run;
  for (const device::LaneStride& stride : part.strides) {
    at += run % stride.count * stride.distance;
    run /= stride.count;
  }
  return at;
}

}  // namespace

JointLane::~JointLane() {
  for (const auto& [id, memory] : buffers_) {
    ::munmap(memory.bytes, memory.size);
  }
}

void JointLane::submit(device::LaneCommand command) {
  if (std::holds_alternative<device::SetWidth>(command)) {
    return;
  }
  if (const auto* abort = std::get_if<device::Abort>(&command)) {
    plan(abort->plan).aborted = abort->tag;
  }
  commands_.push_back(std::move(command));
}

std::uint64_t JointLane::plan_of(const device::LaneCommand& command) {
  return std::visit(
      [](const auto& each) -> std::uint64_t {
        if constexpr (requires { each.plan; }) {
          return each.plan;
        } else {
          return 0;
        }
      },
      command
  );
}

JointLane::Plan& JointLane::plan(device::PlanId id) {
  const auto found = plans_.find(id);
  require(found != plans_.end(), fmt::format("plan {} is not loaded", id));
  return found->second;
}

bool JointLane::connected() const {
  return std::ranges::any_of(plans_, [](const auto& each) { return !each.second.connections.empty(); });
}

void JointLane::break_wire(plan::TransferNode /*own*/, plan::TransferNode peer) {
  for (auto& [id, plan] : plans_) {
    if (const auto found = plan.connections.find(peer); found != plan.connections.end()) {
      ::shutdown(found->second.partials.get(), SHUT_RDWR);
      ::shutdown(found->second.results.get(), SHUT_RDWR);
    }
  }
}

bool JointLane::wait_report(device::LaneReport& report) {
  for (bool began = true; began;) {
    began = false;
    for (auto& [id, plan] : plans_) {
      if (plan.running && progress(id, report)) {
        return true;
      }
    }
    for (auto command = commands_.begin(); command != commands_.end(); ++command) {
      const auto owner = plans_.find(plan_of(*command));
      if (owner != plans_.end() && owner->second.running) {
        continue;  // parked
      }
      device::LaneCommand next = std::move(*command);
      commands_.erase(command);
      if (std::optional<device::LaneReport> done = execute(next)) {
        report = std::move(*done);
        return true;
      }
      began = true;
      break;
    }
  }
  return false;
}

std::optional<device::LaneReport> JointLane::execute(device::LaneCommand& command) {
  device::Failed failed;
  failed.plan = plan_of(command);
  failed.tag = std::visit(
      [](const auto& each) -> device::Tag {
        if constexpr (requires { each.tag; }) {
          return each.tag;
        } else {
          return 0;
        }
      },
      command
  );
  if (const auto* abort = std::get_if<device::Abort>(&command)) {
    Plan& aborted = plan(abort->plan);
    aborted.connections.clear();
    if (!aborted.lost) {
      aborted.lost = lost(abort->plan, 0, "it was closed by an abort");
      aborted.lost->node.reset();
    }
    return device::Aborted{abort->plan, abort->tag};
  }
  if (failed.tag != 0 || failed.plan != 0) {
    const auto owner = plans_.find(failed.plan);
    const bool of_attempt = std::holds_alternative<device::ReduceBucket>(command) ||
                            std::holds_alternative<device::FinishStep>(command) ||
                            std::holds_alternative<device::ScaleGradients>(command);
    if (of_attempt && owner != plans_.end() && owner->second.aborted && failed.tag <= *owner->second.aborted) {
      failed.aborted = true;
      failed.message = "aborted";
      return failed;
    }
  }
  if (auto* reduce = std::get_if<device::ReduceBucket>(&command)) {
    return begin(*reduce);
  }
  if (const auto* unload = std::get_if<device::UnloadPlan>(&command)) {
    require(plans_.erase(unload->plan) == 1, "a plan is unloaded that was not loaded");
    return device::Unloaded{unload->plan};
  }
  try {
    return std::visit(
        [this](auto& each) -> device::LaneReport {
          if constexpr (requires { perform(each); }) {
            return perform(each);
          } else {
            throw std::logic_error("a lane of several nodes gets a command that it has no use for");
          }
        },
        command
    );
  } catch (const std::runtime_error& error) {
    failed.message = error.what();
    return failed;
  }
}

device::LaneReport JointLane::perform(device::MapBuffer& command) {
  void* memory = ::mmap(nullptr, command.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, command.fd.get(), 0);
  if (memory == MAP_FAILED) {
    throw std::runtime_error("mmap");
  }
  buffers_[command.buffer] = {static_cast<std::byte*>(memory), command.size_bytes};
  return device::Mapped{command.buffer};
}

device::LaneReport JointLane::perform(device::UnmapBuffer& command) {
  if (const auto found = buffers_.find(command.buffer); found != buffers_.end()) {
    ::munmap(found->second.bytes, found->second.size);
    buffers_.erase(found);
  }
  return device::Unmapped{command.buffer};
}

device::LaneReport JointLane::perform(device::LoadPlan& command) {
  const device::LaneNodes& nodes = command.layout.nodes;
  require(nodes.node_of_rank.size() == command.layout.rank_buffers.size(), "not every rank has a node");
  require(nodes.transfers.size() == command.layout.buckets.size(), "not every bucket has a transfer");
  for (std::size_t rank = 0; rank < nodes.node_of_rank.size(); ++rank) {
    const bool here = nodes.node_of_rank[rank] == nodes.node;
    require(here == (command.layout.rank_buffers[rank] != 0), "buffers are those of the ranks here");
  }
  if (std::exchange(fails_, false)) {
    throw std::runtime_error("scripted failure");
  }
  plans_[command.plan].layout = std::move(command.layout);
  return device::Loaded{command.plan};
}

device::LaneReport JointLane::perform(device::ConnectNodes& command) {
  Plan& own = plan(command.plan);
  require(own.connections.empty() && !own.lost, "a plan is connected twice");
  std::set<plan::TransferNode> wanted;
  for (const plan::BucketTransfer& transfer : own.layout.nodes.transfers) {
    const plan::NodeTransfer messages = plan::transfer_of_node(transfer, own.layout.nodes.node);
    for (const plan::TransferMessage& message : messages.sends) {
      wanted.insert(message.peer);
    }
    for (const plan::TransferMessage& message : messages.receives) {
      wanted.insert(message.peer);
    }
  }
  for (device::NodeConnection& connection : command.connections) {
    require(wanted.erase(connection.node) == 1, "a connection that no transfer needs");
    own.connections.emplace(connection.node, std::move(connection));
  }
  require(wanted.empty(), "a connection is missing");
  return device::Connected{command.plan};
}

// ---- a bucket

void JointLane::begin_attempt(Plan& plan, const device::ReduceBucket& command) {
  if (plan.tag != command.tag || plan.reduced.empty()) {
    if (plan.tag != command.tag) {
      plan.reduced.clear();
    }
    plan.tag = command.tag;
    plan.unused.clear();
    plan.counted.clear();
    plan.empties.clear();
    plan.present.clear();
    plan.nonfinite.clear();
    plan.finished = plan.scaled = false;
  }
  require(!plan.reduced.contains(command.bucket), "a bucket is reduced twice");
  require(!command.defer, "over nodes nothing is deferred");
  for (const device::UnusedTensor& unused : command.unused) {
    require(is_here(plan, static_cast<std::uint32_t>(unused.rank)), "a rank of another node is said to be unused");
    plan.unused.emplace(unused.tensor, unused.rank);
  }
}

std::optional<device::LaneReport> JointLane::begin(device::ReduceBucket& command) {
  Plan& own = plan(command.plan);
  device::Failed failed;
  failed.plan = command.plan;
  failed.tag = command.tag;
  if (std::exchange(fails_, false)) {
    failed.message = "scripted failure";
    return failed;
  }
  begin_attempt(own, command);
  const plan::BucketTransfer& transfer = own.layout.nodes.transfers[command.bucket];
  const plan::NodeTransfer messages = plan::transfer_of_node(transfer, own.layout.nodes.node);
  const bool travels = !messages.sends.empty() || !messages.receives.empty();
  if (travels && own.lost) {
    failed = *own.lost;
    failed.tag = command.tag;
    return failed;
  }
  require(!travels || !own.connections.empty(), "a bucket that travels is reduced without connections");
  Running running;
  running.tag = command.tag;
  running.bucket = command.bucket;
  for (const plan::TransferBlock& block : transfer.blocks) {
    Block& partials = running.own.emplace_back();
    for (const plan::TransferPiece& piece : transfer.pieces_of(block)) {
      partials.push_back(partial_of(own, {piece.tensor, piece.part, piece.sum}, piece.first, piece.elements));
    }
  }
  for (const plan::TransferMessage& message : messages.receives) {
    running.expected[{message.peer, message.payload}].push_back(message);
    ++running.missing;
  }
  reduce_here(own, command.bucket);
  own.running = std::move(running);
  send_partials(command.plan, own);
  return std::nullopt;
}

/// The sums that do not travel.
void JointLane::reduce_here(Plan& plan, std::uint32_t bucket) {
  std::vector<std::pair<Place, Piece>> sums;
  for (const std::uint32_t tensor : plan.layout.buckets[bucket].tensors) {
    const device::LaneTensor& entry = plan.layout.tensors[tensor];
    for (std::uint32_t part = 0; part < entry.parts; ++part) {
      const device::LanePart& laid = plan.layout.parts[entry.first_part + part];
      for (std::uint32_t sum = 0; sum < plan.layout.sums[laid.sums].size(); ++sum) {
        const device::LaneSum& of = plan.layout.sums[laid.sums][sum];
        const auto here = [&](const device::LaneMember& member) { return is_here(plan, member.rank); };
        if (std::ranges::all_of(of.sources, here) && std::ranges::all_of(of.destinations, here)) {
          const Place place{tensor, part, sum};
          sums.emplace_back(place, partial_of(plan, place, 0, laid.elements));
        }
      }
    }
  }
  const auto divisor = static_cast<float>(plan.layout.buckets[bucket].divisor);
  for (auto& [place, piece] : sums) {
    const bool counts = place.sum == 0;
    if (!piece.contributed) {
      plan.empties.push_back({place.tensor, place.part, place.sum, 0, piece.values.size(), counts});
      continue;
    }
    std::ranges::for_each(piece.values, [&](float& value) { value /= divisor; });
    if (counts) {
      count(plan, place.tensor, piece.values);
    }
    write(plan, place, 0, piece.values);
  }
}

void JointLane::send_partials(device::PlanId id, Plan& plan) {
  const Running& running = *plan.running;
  const plan::BucketTransfer& transfer = plan.layout.nodes.transfers[running.bucket];
  for (const plan::TransferMessage& message : plan::transfer_of_node(transfer, plan.layout.nodes.node).sends) {
    if (message.payload == plan::Payload::Partial) {
      send(id, plan, message, running.own[message.block]);
    }
  }
}

void JointLane::send(device::PlanId id, Plan& plan, const plan::TransferMessage& message, const Block& block) {
  std::vector<std::byte> bytes(sizeof(Frame));
  const auto add = [&](const void* from, std::size_t size) {
    const auto* const first = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), first, first + size);
  };
  for (const Piece& piece : block) {
    add(piece.values.data(), piece.values.size() * sizeof(float));
  }
  for (const Piece& piece : block) {
    const char contributed = piece.contributed ? 1 : 0;
    add(&contributed, 1);
  }
  const Frame frame{
      plan.running->tag,
      plan.running->bucket,
      message.number,
      static_cast<std::uint32_t>(message.payload),
      static_cast<std::uint32_t>(bytes.size() - sizeof(Frame))};
  std::memcpy(bytes.data(), &frame, sizeof frame);
  const int fd = socket_of(plan.connections.at(message.peer), message.payload);
  const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && !plan.lost) {
    require(errno != EAGAIN, "a test sends more than a socket takes");
    plan.lost = lost(id, message.peer, "it was closed");
  } else {
    require(sent < 0 || sent == static_cast<ssize_t>(bytes.size()), "a test sends more than a socket takes");
  }
}

device::Failed JointLane::lost(device::PlanId id, plan::TransferNode peer, const std::string& why) const {
  device::Failed failed;
  failed.plan = id;
  failed.wire_lost = true;
  failed.node = peer;
  failed.message = why;
  return failed;
}

void JointLane::read_all(Plan& plan) {
  for (auto& [peer, connection] : plan.connections) {
    for (const plan::Payload payload : {plan::Payload::Partial, plan::Payload::Result}) {
      Inbox& inbox = plan.inboxes[{peer, payload}];
      std::byte buffer[4096];
      ssize_t read = 1;
      while (!inbox.ended && read > 0) {
        read = ::recv(socket_of(connection, payload), buffer, sizeof buffer, MSG_DONTWAIT);
        if (read > 0) {
          inbox.bytes.insert(inbox.bytes.end(), buffer, buffer + read);
        }
        inbox.ended = read == 0 || (read < 0 && errno != EAGAIN);
      }
    }
  }
}

bool JointLane::progress(device::PlanId id, device::LaneReport& report) {
  Plan& own = plan(id);
  device::Failed failed;
  failed.plan = id;
  failed.tag = own.running->tag;
  if (own.aborted && own.running->tag <= *own.aborted) {
    own.running.reset();
    failed.aborted = true;
    failed.message = "aborted";
    report = failed;
    return true;
  }
  read_all(own);
  take_messages(id, own);
  if (own.running->missing > 0) {
    for (const auto& [way, messages] : own.running->expected) {
      if (!own.lost && !messages.empty() && own.inboxes[way].ended) {
        own.lost = lost(id, way.first, "the other end closed it");
      }
    }
  }
  if (own.lost) {
    failed = *own.lost;
    failed.tag = own.running->tag;
    own.running.reset();
    report = failed;
    return true;
  }
  if (own.running->missing > 0) {
    return false;
  }
  device::Reduced reduced{id, own.running->tag, own.running->bucket, 0};
  own.reduced.insert(own.running->bucket);
  own.running.reset();
  report = reduced;
  return true;
}

void JointLane::take_messages(device::PlanId id, Plan& plan) {
  for (auto& [way, messages] : plan.running->expected) {
    std::vector<std::byte>& bytes = plan.inboxes[way].bytes;
    while (!messages.empty() && bytes.size() >= sizeof(Frame)) {
      Frame frame;
      std::memcpy(&frame, bytes.data(), sizeof frame);
      if (bytes.size() < sizeof(Frame) + frame.bytes) {
        break;
      }
      const plan::TransferMessage message = messages.front();
      messages.pop_front();
      const plan::BucketTransfer& transfer = plan.layout.nodes.transfers[plan.running->bucket];
      require(
          frame.tag == plan.running->tag && frame.bucket == plan.running->bucket && frame.number == message.number &&
              frame.payload == static_cast<std::uint32_t>(message.payload),
          "a message comes that is not the one that is expected"
      );
      Block block;
      std::size_t from = sizeof(Frame);
      for (const plan::TransferPiece& piece : transfer.pieces_of(transfer.blocks[message.block])) {
        Piece& read = block.emplace_back();
        read.values.resize(piece.elements);
        std::memcpy(read.values.data(), bytes.data() + from, piece.elements * sizeof(float));
        from += piece.elements * sizeof(float);
      }
      for (Piece& piece : block) {
        piece.contributed = bytes[from++] != std::byte{0};
      }
      require(from == sizeof(Frame) + frame.bytes, "a message has another size");
      bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(from));
      --plan.running->missing;
      take(id, plan, message, std::move(block));
    }
  }
}

void JointLane::take(device::PlanId id, Plan& plan, const plan::TransferMessage& message, Block block) {
  const plan::BucketTransfer& transfer = plan.layout.nodes.transfers[plan.running->bucket];
  const plan::TransferBlock& of = transfer.blocks[message.block];
  if (message.payload == plan::Payload::Result) {
    write_block(plan, of, block, false);
    return;
  }
  auto& partials = plan.running->partials[message.block];
  partials.emplace(message.peer, std::move(block));
  const plan::TransferStream& stream = transfer.streams[of.stream];
  const bool own = std::ranges::binary_search(stream.sources, plan.layout.nodes.node);
  if (partials.size() + (own ? 1 : 0) == stream.sources.size()) {
    finish_block(id, plan, message.block);
  }
}

void JointLane::finish_block(device::PlanId id, Plan& plan, std::uint32_t number) {
  const plan::BucketTransfer& transfer = plan.layout.nodes.transfers[plan.running->bucket];
  const plan::TransferBlock& block = transfer.blocks[number];
  auto& partials = plan.running->partials[number];
  partials.emplace(plan.layout.nodes.node, plan.running->own[number]);  // in the order of nodes
  const auto divisor = static_cast<float>(plan.layout.buckets[plan.running->bucket].divisor);
  Block result = plan.running->own[number];
  for (std::size_t piece = 0; piece < result.size(); ++piece) {
    std::ranges::fill(result[piece].values, -0.0F);
    result[piece].contributed = false;
    for (const auto& [node, partial] : partials) {
      result[piece].contributed = result[piece].contributed || partial[piece].contributed;
      for (std::size_t i = 0; i < result[piece].values.size(); ++i) {
        result[piece].values[i] += partial[piece].values[i];
      }
    }
    std::ranges::for_each(result[piece].values, [&](float& value) { value /= divisor; });
  }
  write_block(plan, block, result, true);
  for (const plan::TransferMessage& message : plan::transfer_of_node(transfer, plan.layout.nodes.node).sends) {
    if (message.payload == plan::Payload::Result && message.block == number) {
      send(id, plan, message, result);
    }
  }
}

void JointLane::write_block(Plan& plan, const plan::TransferBlock& block, const Block& values, bool owner) {
  const plan::BucketTransfer& transfer = plan.layout.nodes.transfers[plan.running->bucket];
  std::size_t at = 0;
  for (const plan::TransferPiece& piece : transfer.pieces_of(block)) {
    const Piece& value = values[at++];
    const bool counts = owner && piece.sum == 0;
    if (!value.contributed) {
      plan.empties.push_back({piece.tensor, piece.part, piece.sum, piece.first, piece.elements, counts});
      continue;
    }
    if (counts) {
      count(plan, piece.tensor, value.values);
    }
    write(plan, {piece.tensor, piece.part, piece.sum}, piece.first, value.values);
  }
}

// ---- its elements

bool JointLane::is_here(const Plan& plan, std::uint32_t rank) {
  return plan.layout.nodes.node_of_rank[rank] == plan.layout.nodes.node;
}

float* JointLane::at(const Plan& plan, std::uint32_t rank, std::uint64_t offset, std::uint64_t element) {
  const Memory& memory = buffers_.at(plan.layout.rank_buffers[rank]);
  require(offset + (element + 1) * sizeof(float) <= memory.size, "an arena is too small");
  return reinterpret_cast<float*>(memory.bytes + offset + element * sizeof(float));
}

JointLane::Piece JointLane::partial_of(Plan& plan, const Place& place, std::uint64_t first, std::uint64_t elements) {
  const device::LaneTensor& tensor = plan.layout.tensors[place.tensor];
  const device::LanePart& part = plan.layout.parts[tensor.first_part + place.part];
  Piece piece{std::vector<float>(elements, -0.0F), false};
  for (const device::LaneMember& member : plan.layout.sums[part.sums][place.sum].sources) {
    const std::uint32_t memory = member.copy == 0 ? place.tensor : tensor.copies[member.copy - 1];
    if (!is_here(plan, member.rank) || plan.unused.contains({memory, member.rank})) {
      continue;
    }
    piece.contributed = true;
    plan.present.insert(place.tensor);
    const std::uint64_t offset = plan.layout.arenas[plan.layout.arena_of_rank[member.rank]].input[memory];
    for (std::uint64_t i = 0; i < elements; ++i) {
      const float value = *at(plan, member.rank, offset, input_element(part, first + i));
      piece.values[i] += value;
      if (!std::isfinite(value)) {
        ++plan.nonfinite[place.tensor][member.rank];
      }
    }
  }
  return piece;
}

void JointLane::write(Plan& plan, const Place& place, std::uint64_t first, const std::vector<float>& values) {
  const device::LaneTensor& tensor = plan.layout.tensors[place.tensor];
  const device::LanePart& part = plan.layout.parts[tensor.first_part + place.part];
  for (const device::LaneMember& member : plan.layout.sums[part.sums][place.sum].destinations) {
    if (!is_here(plan, member.rank)) {
      continue;
    }
    const std::uint32_t memory = member.copy == 0 ? place.tensor : tensor.copies[member.copy - 1];
    const device::LaneArena& arena = plan.layout.arenas[plan.layout.arena_of_rank[member.rank]];
    for (std::uint64_t i = 0; i < values.size(); ++i) {
      *at(plan, member.rank, arena.output[memory], first + i) = values[i];
    }
  }
}

void JointLane::count(Plan& plan, std::uint32_t tensor, const std::vector<float>& values) {
  Counted& counted = plan.counted[tensor];
  for (const float value : values) {
    if (!std::isfinite(value)) {
      ++counted.nonfinite;
      counted.nan += std::isnan(value) ? 1 : 0;
      continue;
    }
    counted.power_sum += static_cast<double>(value) * value;
    counted.maximum = std::max(counted.maximum, std::abs(static_cast<double>(value)));
  }
  counted.elements += values.size();
}

// ---- the end of a step

device::LaneReport JointLane::perform(device::FinishStep& command) {
  Plan& own = plan(command.plan);
  require(command.raw && !command.apply && command.rules.empty(), "over nodes nothing is decided on a lane");
  if (own.reduced.size() != own.layout.buckets.size() || (!own.layout.buckets.empty() && own.tag != command.tag)) {
    throw std::runtime_error("not every bucket is reduced");
  }
  device::NormTotals totals(own.layout.norm_type, own.layout.clip_groups, own.layout.layers);
  device::Finished finished{command.plan, command.tag, {}};
  std::uint64_t elements = 0;
  for (const auto& [tensor, counted] : own.counted) {
    device::TensorSum sum;
    sum.power_sum = {counted.power_sum, 0};
    sum.maximum = counted.maximum;
    sum.nonfinite = counted.nonfinite;
    sum.nan = counted.nan;
    finished.math.nonfinite_total += counted.nonfinite;
    totals.add(sum, own.layout.tensors[tensor].clip_group, own.layout.tensors[tensor].layer);
    elements += counted.elements;
  }
  for (std::uint32_t tensor = 0; tensor < own.layout.tensors.size(); ++tensor) {
    const std::uint64_t count = own.counted.contains(tensor) ? own.counted.at(tensor).nonfinite : 0;
    if (count != 0 || own.nonfinite.contains(tensor)) {
      const std::map<std::int64_t, std::uint64_t>& inputs = own.nonfinite[tensor];
      finished.math.nonfinite.push_back({tensor, count, {inputs.begin(), inputs.end()}});
    }
    if (own.layout.tensors[tensor].parts != 0 && !own.present.contains(tensor)) {
      finished.math.absent.push_back(tensor);
      const std::vector<std::uint32_t>& copies = own.layout.tensors[tensor].copies;
      finished.math.absent.insert(finished.math.absent.end(), copies.begin(), copies.end());
    }
  }
  std::ranges::sort(finished.math.absent);
  std::map<std::uint32_t, std::set<std::int64_t>> missing;
  for (const Empty& empty : own.empties) {
    const device::LanePart& part = own.layout.parts[own.layout.tensors[empty.tensor].first_part + empty.part];
    for (const device::LaneMember& member : own.layout.sums[part.sums][empty.sum].destinations) {
      if (is_here(own, member.rank)) {
        missing[empty.tensor].insert(member.rank);
      }
    }
  }
  for (const auto& [tensor, ranks] : missing) {
    finished.math.missing.push_back({tensor, {ranks.begin(), ranks.end()}});
  }
  finished.raw = std::make_shared<const device::RawStep>(device::RawStep{totals.cells(elements), {}});
  own.finished = true;
  return finished;
}

device::LaneReport JointLane::perform(device::ScaleGradients& command) {
  Plan& own = plan(command.plan);
  require(own.finished && !own.scaled && own.tag == command.tag, "an attempt is multiplied once, behind its finish");
  require(command.outcomes.size() == own.layout.clip_groups, "an outcome for each clip group");
  own.scaled = true;
  const auto is_absent = [&](std::uint32_t tensor) { return std::ranges::binary_search(command.absent, tensor); };
  for (const Empty& empty : own.empties) {
    if (is_absent(empty.tensor)) {
      continue;
    }
    const device::LanePart& part = own.layout.parts[own.layout.tensors[empty.tensor].first_part + empty.part];
    if (empty.counts && own.layout.sums[part.sums].size() > 1) {
      throw std::runtime_error(fmt::format("nothing counts tensor {}", empty.tensor));
    }
    write(own, {empty.tensor, empty.part, empty.sum}, empty.first, std::vector<float>(empty.elements, 0.0F));
  }
  for (std::uint32_t tensor = 0; tensor < own.layout.tensors.size(); ++tensor) {
    const device::LaneTensor& entry = own.layout.tensors[tensor];
    const plan::ClipOutcome& outcome = command.outcomes[entry.clip_group];
    if (is_absent(tensor) || !outcome.multiply || outcome.multiplier == 1) {
      continue;
    }
    for (std::uint32_t number = 0; number < entry.parts; ++number) {
      const device::LanePart& part = own.layout.parts[entry.first_part + number];
      for (const device::LaneSum& sum : own.layout.sums[part.sums]) {
        for (const device::LaneMember& member : sum.destinations) {
          if (!is_here(own, member.rank)) {
            continue;
          }
          const std::uint32_t memory = member.copy == 0 ? tensor : entry.copies[member.copy - 1];
          const device::LaneArena& arena = own.layout.arenas[own.layout.arena_of_rank[member.rank]];
          for (std::uint64_t i = 0; i < part.elements; ++i) {
            float& value = *at(own, member.rank, arena.output[memory], i);
            value *= static_cast<float>(outcome.multiplier);
          }
        }
      }
    }
  }
  return device::Scaled{command.plan, command.tag, 0};
}

}  // namespace gradsync::engine
