#pragma once
// The passes over the memory of a plan over nodes, which each kind of device makes in its own way: between gradients
// and the staging memory of its blocks, and over its outputs. The bits are the same on all of them.

#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"
#include "device/transfer/block_pass.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace gradsync::device {

/// The staging memory of a plan's blocks, and the passes between it and gradients. Functions throw DeviceError where
/// the device fails.
class BlockWork {
 public:
  virtual ~BlockWork() = default;

  /// Where the staging memory begins, by the addresses of the device.
  [[nodiscard]] virtual std::byte* memory() const = 0;

  /// Numbers into the staging memory, which are there behind the next `run`, and out of it.
  virtual void write(std::byte* to, const void* from, std::size_t bytes) = 0;
  virtual void read(void* to, const std::byte* from, std::size_t bytes) const = 0;

  /// Appends a pass over a whole block: Sum or Join.
  virtual void add(BlockTask::Kind kind, std::uint32_t bucket, const NodeBlock& block, const StagedBlock& staged) = 0;

  /// Executes what was added, and forgets it. Returns when all of it is in memory; incomplete where the attempt is
  /// cancelled.
  virtual void run() = 0;
};

/// Functions throw DeviceError: Aborted when the attempt is cancelled in time, Failed where the device fails.
class NodePasses {
 public:
  virtual ~NodePasses() = default;

  /// Once for a plan that is loaded and has communicators. The plan must outlive it.
  [[nodiscard]] virtual std::unique_ptr<BlockWork> make_blocks(LoadedPlan& plan, std::uint64_t staging_bytes) = 0;

  /// Compares the results of a part's sums bit for bit, of those that have a destination here, with the first of them.
  /// Raises `differs` of the attempt. Takes the hashes by which results on other nodes are compared with that one.
  virtual void compare_results(LoadedPlan& plan, std::uint32_t bucket) = 0;

  /// As StepPasses::multiply; and writes zeros to sums that nobody contributed to, of tensors that are not in `absent`.
  /// Seconds it took.
  [[nodiscard]] virtual double scale_outputs(LoadedPlan& plan, const ScaleGradients& command) = 0;

  /// As node_copies.hpp has it.
  [[nodiscard]] virtual RowsRead read_copies(const LoadedPlan& plan, const ReadRows& command) = 0;
};

/// The elements of outputs, as the host reads them.
class OutputReader {
 public:
  virtual ~OutputReader() = default;

  /// Those of a chunk, valid until another chunk of the same member is read. `width`: bytes of one. Workers of a pool
  /// call it, so it does not throw.
  [[nodiscard]] virtual const std::byte* read(
      const LoadedPlan& plan, const Chunk& chunk, const LaneMember& member, std::size_t width
  ) noexcept = 0;
};

}  // namespace gradsync::device
