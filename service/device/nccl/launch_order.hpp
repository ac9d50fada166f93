#pragma once
// The collectives of one step of a plan, in the one order in which every member launches them: bucket by bucket, and in
// a bucket stage by stage. What is launched out of turn is refused, because elsewhere it would be another operation.

#include "device/nccl/nccl_abi.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gradsync::device {

enum class CollectiveKind : std::uint8_t { AllReduce, ReduceScatter, AllGather };

struct PlannedCollective {
  std::string communicator;  ///< its name
  CollectiveKind kind = CollectiveKind::AllReduce;
  NcclType type = NcclType::Float32;
  std::size_t elements = 0;  ///< as NCCL counts them for this kind
  std::uint32_t bucket = 0;
  std::uint32_t stage = 0;  ///< of the bucket, in sync order
  friend bool operator==(const PlannedCollective&, const PlannedCollective&) = default;
};

class LaunchOrder {
 public:
  LaunchOrder() = default;

  /// Throws DeviceError where stages of a bucket are not in their order, or a bucket's are not together.
  explicit LaunchOrder(std::vector<PlannedCollective> step);

  /// The next one is launched. Throws DeviceError, and stays where it is, where another one is next.
  void take(const PlannedCollective& launched);

  /// A step begins. Throws DeviceError where the one before has begun and is not complete.
  void begin_step();

  /// The step was aborted.
  void forget_step() { next_ = step_.size(); }

  [[nodiscard]] bool complete() const { return next_ == step_.size(); }

 private:
  std::vector<PlannedCollective> step_;
  std::size_t next_ = 0;
};

}  // namespace gradsync::device
