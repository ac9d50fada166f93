#pragma once
// What every implementation of the passes is asked by the conformance suite, with values on the host: it puts them
// where it needs them. `DeviceKernels` runs kernels/*.cu, on a GPU or on the emulation, by which headers it was
// compiled with.

#include "kernels/clip_outcome.hpp"
#include "kernels/power_sum.hpp"
#include "kernels/tables/chunk_table.hpp"
#include "kernels/tables/copy_table.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace gradsync::kernels {

struct HostTensor {
  DType dtype = DType::Float32;
  std::vector<std::byte> bytes;
  std::size_t offset = 0;  ///< bytes between a well aligned address and the first element
  std::uint32_t norm_group = 0;
  std::uint32_t clip_group = 0;

  [[nodiscard]] std::uint64_t count() const { return bytes.size() / size_of(dtype); }
};

struct Measured {
  std::vector<PowerSum> tensors;
  std::vector<PowerSum> groups;
};

struct HostBuffer {
  std::vector<std::byte> bytes;
  std::size_t offset = 0;
};

/// Given the addresses of buffers, the parts to copy between them.
using MakeParts = std::function<std::vector<CopyPart>(const std::vector<void*>& addresses)>;

class Implementation {
 public:
  virtual ~Implementation() = default;

  virtual Measured measure(const std::vector<HostTensor>& tensors, double p, bool fingerprint) = 0;
  /// `sums` has the same number of sums per rule.
  virtual std::vector<ClipOutcome> decide(
      const std::vector<PowerSum>& sums, const std::vector<arithmetic::ClipLimit>& rules, double p, double scale
  ) = 0;
  virtual void scale(std::vector<HostTensor>& tensors, const std::vector<ClipOutcome>& outcomes) = 0;
  virtual void copy(std::vector<HostBuffer>& buffers, const MakeParts& make_parts) = 0;
};

struct NamedImplementation {
  std::string name;
  bool is_device = false;  ///< runs kernels/*.cu
  std::function<std::unique_ptr<Implementation>()> make;
};

/// For GoogleTest.
inline void PrintTo(const NamedImplementation& implementation, std::ostream* out) { *out << implementation.name; }

/// Each test program has its own list.
std::vector<NamedImplementation> implementations();

/// Empty when the implementation can run here, else why not.
std::string why_not(const NamedImplementation& implementation);

inline std::uint32_t group_count(const std::vector<HostTensor>& tensors, std::uint32_t HostTensor::*group) {
  std::uint32_t count = 1;
  for (const HostTensor& tensor : tensors) {
    count = std::max(count, tensor.*group + 1);
  }
  return count;
}

}  // namespace gradsync::kernels
