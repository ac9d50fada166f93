#pragma once
// A list of tensors on the device with everything that measuring and clipping them needs, made once.

#include "kernels/device_memory.hpp"
#include "kernels/kernels.hpp"

#include <vector>

namespace gradsync::kernels {

class ClipStep {
 public:
  ClipStep(const std::vector<TensorSpec>& tensors, arithmetic::ClipLimit rule)
      : chunks_(tensors, 1, 1),
        image_(chunks_.image().size()),
        scratch_(chunks_.scratch_bytes()),
        sums_((tensors.size() + 1) * sizeof(PowerSum)),
        rules_(uploaded(std::vector<arithmetic::ClipLimit>{rule})),
        outcomes_(sizeof(ClipOutcome)) {
    image_.upload(chunks_.image().data(), chunks_.image().size());
    scratch_.zero();
    must(cudaStreamSynchronize(nullptr), "zeroing the scratch memory");
  }

  void enqueue_measure(cudaStream_t stream, bool fingerprint = false) const {
    const DeviceTable table = chunks_.at(image_.get());
    must(measure(table, {2, fingerprint}, scratch_.get(), sums(), sums() + table.tensor_count, stream), "measure");
  }

  void enqueue_clip(cudaStream_t stream, double loss_scale = 1) const {
    const DeviceTable table = chunks_.at(image_.get());
    must(
        decide(
            sums() + table.tensor_count,
            1,
            reinterpret_cast<const arithmetic::ClipLimit*>(rules_.get()),
            1,
            2,
            loss_scale,
            outcomes(),
            stream
        ),
        "decide"
    );
    must(scale(table, outcomes(), scratch_.get(), stream), "scale");
  }

  [[nodiscard]] ClipOutcome outcome() const { return downloaded<ClipOutcome>(outcomes_, 1)[0]; }

 private:
  [[nodiscard]] PowerSum* sums() const { return reinterpret_cast<PowerSum*>(sums_.get()); }

  [[nodiscard]] ClipOutcome* outcomes() const { return reinterpret_cast<ClipOutcome*>(outcomes_.get()); }

  ChunkTable chunks_;
  DeviceMemory image_;
  DeviceMemory scratch_;
  DeviceMemory sums_;
  DeviceMemory rules_;
  DeviceMemory outcomes_;
};

}  // namespace gradsync::kernels
