// What becomes of the communicators of a plan, and the numbers that say who contributed.

#include "device/collective/collective_run.hpp"
#include "device/transfer/node_contributions.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace gradsync::device {

namespace {

void write_number(plan::DType dtype, std::byte* to, std::size_t at, double value) {
  if (dtype == plan::DType::Float64) {
    reinterpret_cast<double*>(to)[at] = value;
  } else {
    reinterpret_cast<float*>(to)[at] = static_cast<float>(value);
  }
}

/// The numbers behind the elements of a block, which lie in memory of the device, as the host reads them.
class StagedNumbers {
 public:
  StagedNumbers(
      const BlockWork& work, plan::DType dtype, const std::byte* block, std::uint64_t first, std::size_t count
  )
      : dtype_(dtype), first_(first), bytes_(count * plan::size_of(dtype)) {
    work.read(bytes_.data(), block + first * plan::size_of(dtype), bytes_.size());
  }

  /// `element`: of the block.
  [[nodiscard]] double at(std::uint64_t element) const {
    const std::uint64_t place = element - first_;
    return dtype_ == plan::DType::Float64 ? reinterpret_cast<const double*>(bytes_.data())[place]
                                          : double{reinterpret_cast<const float*>(bytes_.data())[place]};
  }

 private:
  plan::DType dtype_;
  std::uint64_t first_;
  std::vector<std::byte> bytes_;
};

}  // namespace

const NodeBucket& CollectiveRun::bucket_of(const Flight& flight) const {
  return plan_.nodes()->buckets[flight.collective->planned.bucket];
}

const plan::BucketTransfer& CollectiveRun::transfer_of(const Flight& flight) const {
  return plan_.layout().nodes.transfers[flight.collective->planned.bucket];
}

/// Behind the elements of each block; what no block fills is zero.
void CollectiveRun::write_flags(const Flight& flight) {
  const plan::BucketTransfer& transfer = transfer_of(flight);
  const std::vector<std::uint64_t>& begins = flight.collective->begins;
  const std::size_t width = plan::size_of(transfer.sum);
  std::vector<std::byte> numbers;
  for (std::size_t at = 0; at < flight.places.size(); ++at) {
    const std::uint32_t number = flight.collective->blocks[at];
    const plan::TransferBlock* const block =
        number == plan::kNoBlock ? nullptr : &transfer.blocks[bucket_of(flight).blocks[number].block];
    const std::uint64_t elements = block == nullptr ? 0 : block->elements;
    numbers.assign((begins[at + 1] - begins[at] - elements) * width, std::byte{0});
    std::byte* const to = numbers.data();
    std::uint64_t next = 0;
    if (block != nullptr) {
      for (const plan::TransferPiece& piece : transfer.pieces_of(*block)) {
        const LanePart& part = plan_.layout().parts[plan_.layout().tensors[piece.tensor].first_part + piece.part];
        const bool contributed = plan_.contributed(piece.tensor, plan_.sums_of(part)[piece.sum]);
        write_number(transfer.sum, to, next++, contributed ? 1 : 0);
      }
    }
    work_->write(flight.places[at].own + elements * width, numbers.data(), numbers.size());
  }
}

/// What is not written here is not known here.
void CollectiveRun::note_flags(const Flight& flight, const Sum& sum) {
  const plan::BucketTransfer& transfer = transfer_of(flight);
  const NodeBlock& at = *sum.block;
  if (at.outputs.begin == at.outputs.end) {
    return;
  }
  const plan::TransferBlock& block = transfer.blocks[at.block];
  const StagedNumbers numbers(*work_, transfer.sum, sum.staged.own, block.elements, block.pieces);
  for (std::uint32_t piece = 0; piece < block.pieces; ++piece) {
    const plan::TransferPiece& of = transfer.pieces[block.first_piece + piece];
    const std::uint32_t part = plan_.layout().tensors[of.tensor].first_part + of.part;
    const bool contributed = numbers.at(block.elements + piece) > 0;
    note_result(plan_, part, of.sum, contributed);
  }
}

void CollectiveRun::on(const Communicators::Connected& /*connected*/) {
  if (link_ == Link::Connecting) {
    link_ = Link::Connected;
    reports_.emplace_back(Connected{id_});
  }
}

void CollectiveRun::on(const Communicators::Broken& broken) {
  if (link_ != Link::Failed) {
    fail_all({broken.message});
    end_communicators();
  }
}

/// One that failed is followed by what says why.
void CollectiveRun::on(const Communicators::Operated& operated) {
  const auto found = std::ranges::find(flights_, operated.number, &Flight::number);
  if (operated.done && found != flights_.end()) {
    found->state = Flight::State::Done;
  }
}

void CollectiveRun::on(const Communicators::Aborted& /*aborted*/) {
  ending_ = false;
  for (const Tag tag : std::exchange(aborts_, {})) {
    reports_.emplace_back(Aborted{id_, tag});
  }
}

void CollectiveRun::on(const Communicators::Lost& lost) {
  const End end{lost.message, true, {}};
  fail_all(end);
  ending_ = false;
  for (const Tag tag : std::exchange(aborts_, {})) {
    reports_.emplace_back(failed(tag, end));
  }
}

}  // namespace gradsync::device
