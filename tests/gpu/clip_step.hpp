#pragma once
// A list of tensors on the device with everything that measuring and clipping them needs, made once.

#include "kernels/kernels.hpp"
#include "kernels/placed_table.hpp"

#include <vector>

namespace gradsync::kernels {

class ClipStep {
 public:
  ClipStep(const std::vector<PlacedTensor>& tensors, arithmetic::ClipLimit rule)
      : table_(tensors, 1, 1),
        sums_((tensors.size() + 1) * sizeof(PowerSum)),
        rules_(uploaded(std::vector<arithmetic::ClipLimit>{rule})),
        outcomes_(sizeof(ClipOutcome)) {}

  void enqueue_measure(cudaStream_t stream, bool fingerprint = false) const {
    const DeviceTable table = table_.table();
    must(
        measure(table, {2, fingerprint}, table_.scratch().get(), sums(), sums() + table.tensor_count, stream), "measure"
    );
  }

  void enqueue_clip(cudaStream_t stream, double loss_scale = 1) const {
    const DeviceTable table = table_.table();
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
    must(scale(table, outcomes(), table_.scratch().get(), stream), "scale");
  }

  [[nodiscard]] ClipOutcome outcome() const { return downloaded<ClipOutcome>(outcomes_, 1)[0]; }

 private:
  [[nodiscard]] PowerSum* sums() const { return reinterpret_cast<PowerSum*>(sums_.get()); }

  [[nodiscard]] ClipOutcome* outcomes() const { return reinterpret_cast<ClipOutcome*>(outcomes_.get()); }

  PlacedTable table_;
  DeviceMemory sums_;
  DeviceMemory rules_;
  DeviceMemory outcomes_;
};

}  // namespace gradsync::kernels
