#pragma once
// Results in memory of a GPU as the host reads them, for steps that compare them with those of other nodes: copied in
// stretches, because a copy of a chunk would take longer to begin than to make.

#include "device/gpu/kernel_library.hpp"
#include "device/transfer/node_passes.hpp"

#include <cstdint>
#include <exception>
#include <map>
#include <utility>
#include <vector>

namespace gradsync::device {

/// Belongs to one thread.
class GpuOutputs final : public OutputReader {
 public:
  explicit GpuOutputs(const KernelLibrary& library) : library_(library) {}

  /// After a failure it gives zeros.
  [[nodiscard]] const std::byte* read(
      const LoadedPlan& plan, const Chunk& chunk, const LaneMember& member, std::size_t width
  ) noexcept override;

  /// Throws the first failure of the device.
  void throw_if_failed() const;

 private:
  struct Stretch {
    std::uint32_t part = 0;
    std::uint64_t first = 0;  ///< element of the part
    std::uint64_t elements = 0;
    std::vector<std::byte> bytes = {};
  };

  const KernelLibrary& library_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Stretch> stretches_;  ///< by rank and copy
  std::exception_ptr failure_;
};

}  // namespace gradsync::device
