#pragma once
// The tables of a loaded plan in the memory of a GPU, and the passes over it.
//
// A place of kernels/tables/reduce_table.hpp is a tensor's input or output on a rank: twice the slot of LoadedPlan, and
// one more for the output. Nothing of a plan is deferred: the reducing pass writes every copy. Over nodes its tables
// have the sums that are here as a whole; GpuBlocks has those that travel.

#include "device/gpu/gpu_blocks.hpp"
#include "device/gpu/gpu_table.hpp"
#include "device/gpu/release_on_gpu.hpp"
#include "device/loaded/loaded_plan.hpp"
#include "device/transfer/node_outputs.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace gradsync::device {

class GpuPlan {
 public:
  /// Throws DeviceError where the device has no memory for the tables.
  GpuPlan(const KernelLibrary& library, const LoadedPlan& plan);

  void reduce(LoadedPlan& plan, std::uint32_t bucket, bool compare);
  void sum_again(LoadedPlan& plan);

  /// As StepPasses::multiply, where something is to be done.
  void multiply(const LoadedPlan& plan, const std::vector<plan::ClipOutcome>& outcomes);

  /// As NodePasses::scale_outputs, where something is to be done.
  void scale_outputs(const LoadedPlan& plan, const ScaleGradients& command, const OutputScaling& scaling);

  /// The plan is over nodes.
  [[nodiscard]] GpuBlocks& blocks() const { return *blocks_; }

 private:
  /// One output that a clip multiplies.
  struct Output {
    std::uint32_t part = 0;
    std::uint32_t sum = 0;  ///< of the part
    LaneMember member;
  };

  /// The outputs of one clip group.
  struct Group {
    std::vector<Output> outputs;
    std::unique_ptr<gradsync_table, ReleaseOnGpu> table;
    std::unique_ptr<std::byte, ReleaseOnGpu> memory;
    std::vector<std::uint64_t> addresses;  ///< scratch
  };

  [[nodiscard]] GpuTableLists make_lists(const LoadedPlan& plan);
  void make_groups(const LoadedPlan& plan);
  void load(Group& group, const LoadedPlan& plan) const;
  void place(const LoadedPlan& plan, const LaneBucket& bucket);
  void note_differences(LoadedPlan& plan) const;
  void write_zeros(const LoadedPlan& plan, const Group& group) const;
  void write_zeros(const LoadedPlan& plan, const Output& output) const;
  void scale(const LoadedPlan& plan, Group& group, double multiplier);
  [[nodiscard]] static std::byte* memory_of(const LoadedPlan& plan, const Output& output);
  void scale_placed(Group& group, double multiplier) const;

  const KernelLibrary& library_;
  std::vector<std::uint32_t> first_sum_;  ///< by part; where all ranks are here
  GpuTable table_;
  std::unique_ptr<GpuBlocks> blocks_;  ///< over nodes, where sums travel by collectives
  std::vector<Group> groups_;
};

}  // namespace gradsync::device
