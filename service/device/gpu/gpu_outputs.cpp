#include "device/gpu/gpu_outputs.hpp"

#include <algorithm>

namespace gradsync::device {

namespace {

constexpr std::uint64_t kStretchElements = 1U << 20;

}  // namespace

const std::byte* GpuOutputs::read(
    const LoadedPlan& plan, const Chunk& chunk, const LaneMember& member, std::size_t width
) noexcept {
  Stretch& stretch = stretches_[{member.rank, member.copy}];
  const bool there = stretch.part == chunk.part && chunk.first >= stretch.first &&
                     chunk.first + chunk.count() <= stretch.first + stretch.elements;
  if (!there) {
    const std::uint64_t left = plan.part_of(chunk).elements - chunk.first;
    stretch.part = chunk.part;
    stretch.first = chunk.first;
    stretch.elements = std::max<std::uint64_t>(chunk.count(), std::min(left, kStretchElements));
    stretch.bytes.assign(stretch.elements * width, std::byte{0});
    try {
      library_.must(
          library_.read(stretch.bytes.data(), plan.output(chunk, member, width), stretch.bytes.size()),
          "reading results"
      );
    } catch (...) {
      failure_ = failure_ ? failure_ : std::current_exception();
    }
  }
  return stretch.bytes.data() + (chunk.first - stretch.first) * width;
}

void GpuOutputs::throw_if_failed() const {
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

}  // namespace gradsync::device
