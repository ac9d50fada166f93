// What only the emulation can be asked: other orders of threads, launches that fail.

#include "kernels/device_kernels.hpp"
#include "kernels/gradients.hpp"
#include "kernels/kernels.hpp"
#include "simt.hpp"

#include <gtest/gtest.h>

namespace gradsync::kernels {
namespace {

class Emulation : public testing::Test {
 protected:
  Emulation() { simt::settings() = {}; }

  ~Emulation() override { simt::settings() = {}; }
};

std::vector<HostTensor> some_tensors(DType dtype) {
  std::vector<HostTensor> tensors;
  for (const std::uint64_t count : {70'001, 20'000, 130'007, 0, 1, 500, 499, 77, 300, 4'000}) {
    tensors.push_back(make_tensor(dtype, count, count % 2 == 0 ? Values::Normal : Values::Extreme));
  }
  // More tensors of several pieces than one block adds.
  for (int i = 0; i < 10; ++i) {
    tensors.push_back(make_tensor(dtype, 33'000, Values::Normal));
  }
  return tensors;
}

bool equal_bits(const std::vector<PowerSum>& a, const std::vector<PowerSum>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(PowerSum)) == 0;
}

// A missing barrier, a read of what another thread has not written yet, or a sum in the order of arrival would show.
TEST_F(Emulation, bits_do_not_depend_on_the_order_in_which_threads_run) {
  const std::unique_ptr<Implementation> kernels = make_device_kernels();
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float64}) {
    const std::vector<HostTensor> tensors = some_tensors(dtype);
    const Measured ascending = kernels->measure(tensors, 2, true);
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      simt::settings().order = seed == 0 ? simt::ThreadOrder::Descending : simt::ThreadOrder::Shuffled;
      simt::settings().seed = seed;
      const Measured other = kernels->measure(tensors, 2, true);
      EXPECT_TRUE(equal_bits(other.tensors, ascending.tensors)) << "seed " << seed;
      EXPECT_TRUE(equal_bits(other.groups, ascending.groups)) << "seed " << seed;
    }
    simt::settings() = {};
  }
}

TEST_F(Emulation, scaling_does_not_depend_on_the_order_in_which_threads_run) {
  const std::unique_ptr<Implementation> kernels = make_device_kernels();
  ClipOutcome outcome{};
  outcome.multiplier = 0.3;
  outcome.multiply = 1;
  std::vector<HostTensor> ascending = some_tensors(DType::BFloat16);
  std::vector<HostTensor> shuffled = ascending;
  kernels->scale(ascending, {outcome});
  simt::settings().order = simt::ThreadOrder::Shuffled;
  kernels->scale(shuffled, {outcome});
  for (std::size_t i = 0; i < shuffled.size(); ++i) {
    EXPECT_EQ(shuffled[i].bytes, ascending[i].bytes) << i;
  }
}

TEST_F(Emulation, a_launch_that_fails_is_reported_and_ends_the_pass) {
  const std::vector<HostTensor> tensors{
      make_tensor(DType::Float32, 10, Values::Normal), make_tensor(DType::Float64, 10, Values::Normal)};
  const DeviceTensors device(tensors);
  const DeviceMemory sums(3 * sizeof(PowerSum));
  const DeviceMemory outcomes(sizeof(ClipOutcome));
  auto* of_tensors = reinterpret_cast<PowerSum*>(sums.get());
  for (unsigned failing = 1; failing <= 3; ++failing) {
    simt::settings() = {};
    simt::settings().failing_launch = failing;
    EXPECT_EQ(
        measure(device.table(), {2, false}, device.scratch(), of_tensors, of_tensors + 2, nullptr),
        cudaErrorLaunchFailure
    );
    EXPECT_EQ(simt::settings().launches, failing);
  }
  simt::settings() = {};
  simt::settings().failing_launch = 1;
  EXPECT_EQ(
      scale(device.table(), reinterpret_cast<ClipOutcome*>(outcomes.get()), device.scratch(), nullptr),
      cudaErrorLaunchFailure
  );
}

TEST_F(Emulation, arguments_that_cannot_be_meant_are_refused_without_a_launch) {
  const DeviceTensors device({make_tensor(DType::Float32, 10, Values::Normal)});
  for (const double p : {0.5, 0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(measure(device.table(), {p, false}, device.scratch(), nullptr, nullptr, nullptr), cudaErrorInvalidValue);
  }
  for (const double scale : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(decide(nullptr, 1, nullptr, 1, 2, scale, nullptr, nullptr), cudaErrorInvalidValue);
  }
  EXPECT_EQ(simt::settings().launches, 0U);
}

TEST_F(Emulation, ten_thousand_tensors_take_three_launches) {
  std::vector<HostTensor> tensors;
  for (int i = 0; i < 10'000; ++i) {
    tensors.push_back(make_tensor(DType::BFloat16, 24, Values::Normal));
  }
  const DeviceTensors device(tensors);
  const DeviceMemory of_tensors(tensors.size() * sizeof(PowerSum));
  const DeviceMemory group(sizeof(PowerSum));
  const DeviceMemory outcome(sizeof(ClipOutcome));
  const DeviceMemory rules =
      uploaded(std::vector<arithmetic::ClipLimit>{{1e-3, arithmetic::ClipMode::Strict, arithmetic::NormType::Float32}});
  auto* sums = reinterpret_cast<PowerSum*>(group.get());
  auto* outcomes = reinterpret_cast<ClipOutcome*>(outcome.get());
  must(
      measure(
          device.table(), {2, false}, device.scratch(), reinterpret_cast<PowerSum*>(of_tensors.get()), sums, nullptr
      ),
      "measure"
  );
  must(decide(sums, 1, reinterpret_cast<arithmetic::ClipLimit*>(rules.get()), 1, 2, 1, outcomes, nullptr), "decide");
  must(scale(device.table(), outcomes, device.scratch(), nullptr), "scale");
  EXPECT_EQ(simt::settings().launches, 3U);
  EXPECT_EQ(downloaded<ClipOutcome>(outcome, 1)[0].clipped, 1U);
}

}  // namespace
}  // namespace gradsync::kernels
