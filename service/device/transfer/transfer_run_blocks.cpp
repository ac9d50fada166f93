// The messages of a block: where they lie in staging memory, and the bits that say who contributed.

#include "device/transfer/node_contributions.hpp"
#include "device/transfer/transfer_run.hpp"

#include <algorithm>
#include <utility>

namespace gradsync::device {

namespace {

std::size_t flag_bytes(const plan::TransferBlock& block) { return (block.pieces + 7) / 8; }

bool flag_at(const std::byte* flags, std::size_t piece) {
  return (flags[piece / 8] >> piece % 8 & std::byte{1}) != std::byte{0};
}

void set_flag(std::byte* flags, std::size_t piece, bool value) {
  flags[piece / 8] |= static_cast<std::byte>(value ? 1U << piece % 8 : 0U);
}

}  // namespace

/// Gives the next block its staging memory and asks for its messages. False: there is no room yet.
bool TransferRun::begin_block(Reduction& reduction) {
  const plan::BucketTransfer& transfer = transfer_of(reduction);
  const NodeBlock& at = reduction.bucket->blocks[reduction.begun];
  const plan::TransferBlock& block = transfer.blocks[at.block];
  const plan::TransferStream& stream = transfer.streams[block.stream];
  std::byte* memory = staging_.take(at.staging_bytes);
  if (memory == nullptr) {
    return false;
  }
  const auto next = [&memory](std::uint64_t bytes) { return std::exchange(memory, memory + plan::align_up(bytes)); };
  Block& made = reduction.blocks[reduction.begun];
  const std::uint64_t partial_bytes = plan::message_bytes(transfer, block, plan::Payload::Partial);
  const std::uint64_t result_bytes = plan::message_bytes(transfer, block, plan::Payload::Result);
  std::uint32_t receive = at.receives.begin;
  const auto ask = [&](std::byte* to, std::uint64_t bytes) {
    wire_->receive(name_of(reduction, reduction.bucket->messages.receives[receive++]), {to, bytes});
  };
  made.missing = at.receives.end - at.receives.begin;
  made.sending = at.sends.end - at.sends.begin;
  if (at.owned) {
    made.staged.own = next(block.elements * plan::size_of(transfer.sum));
    for (const plan::TransferNode source : stream.sources) {
      made.staged.partials.push_back(made.staged.own);
      if (source != block.owner) {
        std::byte* const to = next(partial_bytes);
        made.staged.partials.back() = to;
        ask(to, partial_bytes);
      }
    }
    made.staged.result = made.sending != 0 ? next(result_bytes) : nullptr;
    return true;
  }
  made.staged.own = at.inputs.begin != at.inputs.end ? next(partial_bytes) : nullptr;
  if (at.outputs.begin != at.outputs.end) {
    made.staged.result = next(result_bytes);
    ask(made.staged.result, result_bytes);
  }
  return true;
}

/// What the result of a block says of its pieces; at the owner it follows from all partial sums, and is written there.
void TransferRun::note_flags(const Reduction& reduction, std::uint32_t number) {
  const plan::BucketTransfer& transfer = transfer_of(reduction);
  const NodeBlock& at = reduction.bucket->blocks[number];
  const StagedBlock& staged = reduction.blocks[number].staged;
  const plan::TransferBlock& block = transfer.blocks[at.block];
  const std::uint64_t of_partial = block.elements * plan::size_of(transfer.partial);
  std::byte* const flags =
      staged.result == nullptr ? nullptr : staged.result + block.elements * plan::size_of(transfer.result);
  if (at.owned && flags != nullptr) {
    std::fill_n(flags, flag_bytes(block), std::byte{0});
  }
  for (std::uint32_t piece = 0; piece < block.pieces; ++piece) {
    const plan::TransferPiece& of = transfer.pieces[block.first_piece + piece];
    const std::uint32_t part = plan_.layout().tensors[of.tensor].first_part + of.part;
    bool contributed = false;
    if (!at.owned) {
      contributed = flag_at(flags, piece);
    } else {
      contributed = plan_.contributed(of.tensor, plan_.sums_of(plan_.layout().parts[part])[of.sum]);
      for (const std::byte* partial : staged.partials) {
        contributed = contributed || (partial != staged.own && flag_at(partial + of_partial, piece));
      }
      if (flags != nullptr) {
        set_flag(flags, piece, contributed);
      }
    }
    note_result(plan_, part, of.sum, contributed);
  }
}

void TransferRun::end_work(const Work& work) {
  const NodeBlock& at = work.reduction->bucket->blocks[work.block];
  Block& block = work.reduction->blocks[work.block];
  if (work.kind != BlockTask::Kind::Sum) {
    block.written = true;
  } else {
    block.summed = true;
    block.written = at.outputs.begin == at.outputs.end;
  }
  const plan::BucketTransfer& transfer = transfer_of(*work.reduction);
  const plan::TransferBlock& of = transfer.blocks[at.block];
  std::byte* message = nullptr;
  if (work.kind == BlockTask::Kind::Sum && !at.owned && block.staged.own != nullptr) {
    message = block.staged.own;
    std::byte* const flags = message + of.elements * plan::size_of(transfer.partial);
    std::fill_n(flags, flag_bytes(of), std::byte{0});
    for (std::uint32_t piece = 0; piece < of.pieces; ++piece) {
      const plan::TransferPiece& each = transfer.pieces[of.first_piece + piece];
      const LanePart& part = plan_.layout().parts[plan_.layout().tensors[each.tensor].first_part + each.part];
      set_flag(flags, piece, plan_.contributed(each.tensor, plan_.sums_of(part)[each.sum]));
    }
  } else if (work.kind == BlockTask::Kind::Join) {
    message = block.staged.result;
  }
  for (std::uint32_t send = at.sends.begin; message != nullptr && send < at.sends.end; ++send) {
    const plan::TransferMessage& named = work.reduction->bucket->messages.sends[send];
    wire_->send(name_of(*work.reduction, named), {message, named.bytes});
  }
}

}  // namespace gradsync::device
