// The exact bits that kernels/*.cu give for fixed tensors. Recorded from the emulation; a GPU must give the same, which
// shows that its arithmetic, order and rounding are those that CI has tested. A change of these bits is a change of
// norms: say so in the changelog.

#include "kernels/gradients.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace gradsync::kernels {
namespace {

struct Recorded {
  DType dtype;
  double p;
  std::uint64_t high;
  std::uint64_t low;
  std::uint64_t fingerprint;
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

#include "kernels/recorded_bits.inc"

class RecordedBits : public testing::TestWithParam<NamedImplementation> {};

INSTANTIATE_TEST_SUITE_P(Kernels, RecordedBits, testing::ValuesIn(implementations()), [](const auto& one) {
  return one.param.name;
});

TEST_P(RecordedBits, are_those_of_every_device) {
  if (!GetParam().is_device) {
    GTEST_SKIP() << "not the kernels' source: sums of the reference differ within their bounds";
  }
  if (const std::string reason = why_not(GetParam()); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const std::unique_ptr<Implementation> implementation = GetParam().make();
  for (const Recorded& recorded : kRecorded) {
    const std::vector<HostTensor> tensors{
        make_tensor(recorded.dtype, 100'003, Values::Normal), make_tensor(recorded.dtype, 1'003, Values::Extreme)};
    const Measured measured = implementation->measure(tensors, recorded.p, true);
    const PowerSum& sum = measured.groups.at(0);
    const std::uint64_t fingerprint = measured.tensors[0].fingerprint ^ measured.tensors[1].fingerprint;
    const bool equal = arithmetic::bits_as<std::uint64_t>(sum.high) == recorded.high &&
                       arithmetic::bits_as<std::uint64_t>(sum.low) == recorded.low &&
                       fingerprint == recorded.fingerprint;
    EXPECT_TRUE(equal) << "    {DType::"
                       << (recorded.dtype == DType::Float32    ? "Float32"
                           : recorded.dtype == DType::BFloat16 ? "BFloat16"
                           : recorded.dtype == DType::Float16  ? "Float16"
                                                               : "Float64")
                       << ", " << (recorded.p == kInfinity ? "kInfinity" : std::to_string(static_cast<int>(recorded.p)))
                       << std::hex << ", 0x" << arithmetic::bits_as<std::uint64_t>(sum.high) << "ULL, 0x"
                       << arithmetic::bits_as<std::uint64_t>(sum.low) << "ULL, 0x" << fingerprint << "ULL},";
  }
}

}  // namespace
}  // namespace gradsync::kernels
