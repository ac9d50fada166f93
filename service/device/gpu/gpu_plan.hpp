#pragma once
// The tables of a loaded plan in the memory of a GPU, and the passes over it.
//
// A place of kernels/tables/reduce_table.hpp is a tensor's input or output on a rank: twice the slot of LoadedPlan, and
// one more for the output. Nothing of a plan is deferred: the reducing pass writes every copy.

#include "device/gpu/kernel_library.hpp"
#include "device/loaded/loaded_plan.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace gradsync::device {

/// Gives things back to the library that made them.
struct ReleaseOnGpu {
  const KernelLibrary* library = nullptr;

  void operator()(gradsync_reduction* reduction) const { library->destroy_reduction(reduction); }

  void operator()(gradsync_table* table) const { library->destroy_table(table); }

  void operator()(std::byte* memory) const { library->free(memory); }
};

class GpuPlan {
 public:
  /// Throws DeviceError where the device has no memory for the tables.
  GpuPlan(const KernelLibrary& library, const LoadedPlan& plan);

  void reduce(LoadedPlan& plan, std::uint32_t bucket, bool compare);
  void sum_again(LoadedPlan& plan);

  /// As StepPasses::multiply, where something is to be done.
  void multiply(const LoadedPlan& plan, const std::vector<plan::ClipOutcome>& outcomes);

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

  struct Chunks {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
  };

  void make_reduction(const LoadedPlan& plan);
  void make_groups(const LoadedPlan& plan);
  void load(Group& group, const LoadedPlan& plan) const;
  void place(const LoadedPlan& plan, const LaneBucket& bucket);
  void take(LoadedPlan& plan, std::uint32_t bucket, const gradsync_reduce_result& result);
  void take_findings(LoadedPlan& plan, const gradsync_reduce_result& result);
  void write_zeros(const LoadedPlan& plan, const Group& group) const;
  void scale(const LoadedPlan& plan, Group& group, double multiplier);

  const KernelLibrary& library_;
  std::unique_ptr<gradsync_reduction, ReleaseOnGpu> reduction_;
  std::vector<Chunks> of_bucket_;
  std::vector<std::uint32_t> first_sum_;  ///< by part
  std::vector<Group> groups_;
  std::vector<std::uint64_t> addresses_;         ///< by place, of the attempt
  std::vector<gradsync_reduced_chunk> results_;  ///< scratch, as the next three
  std::vector<std::uint64_t> nonfinite_;
  std::vector<std::uint32_t> differs_;
  std::vector<double> scales_;
};

}  // namespace gradsync::device
