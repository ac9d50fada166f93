// What only a GPU can be asked: sizes that need its memory, and the number of launches as a graph sees it.

#include "gpu/clip_step.hpp"
#include "kernels/device_kernels.hpp"
#include "kernels/gradients.hpp"
#include "kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace gradsync::kernels {
namespace {

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = missing_device(); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
};

arithmetic::ClipLimit strict(double max_norm) {
  return {max_norm, arithmetic::ClipMode::Strict, arithmetic::NormType::Float32};
}

void enqueue(const ClipStep& step, cudaStream_t stream) {
  step.enqueue_measure(stream);
  step.enqueue_clip(stream);
}

TEST_F(Gpu, a_tensor_beyond_two_to_the_31_elements_is_measured_and_clipped_to_its_end) {
  constexpr std::uint64_t kCount = (1ULL << 31) + 4'097;
  std::size_t free = 0;
  std::size_t total = 0;
  must(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (free < 3 * kCount) {
    GTEST_SKIP() << "needs " << 3 * kCount << " bytes of device memory, " << free << " are free";
  }
  const DeviceMemory memory(kCount * 2);
  memory.zero();

  // 1, 1, 3 and 5 at the start, around 2^31 and at the end: the norm is exactly 6.
  struct Planted {
    std::uint64_t index;
    std::uint16_t value;
    std::uint16_t half;
  };

  const Planted planted[] = {
      {0, 0x3f80, 0x3f00},
      {(1ULL << 31) - 1, 0x3f80, 0x3f00},
      {1ULL << 31, 0x4040, 0x3fc0},
      {kCount - 1, 0x40a0, 0x4020},
  };
  for (const Planted& one : planted) {
    memory.upload(&one.value, 2, one.index * 2);
  }
  const ClipStep step({{memory.get(), kCount, DType::BFloat16, 0, 0}}, strict(3));
  enqueue(step, nullptr);
  must(cudaStreamSynchronize(nullptr), "step");
  EXPECT_EQ(step.outcome().norm, 6);
  EXPECT_EQ(step.outcome().coefficient, 0.5);
  for (const Planted& one : planted) {
    std::uint16_t value = 0;
    memory.download(&value, 2, one.index * 2);
    EXPECT_EQ(value, one.half) << one.index;
  }
}

TEST_F(Gpu, ten_thousand_tensors_take_three_launches) {
  constexpr std::uint64_t kTensors = 10'000;
  const DeviceMemory memory(kTensors * 2'048);
  memory.zero();
  std::vector<PlacedTensor> tensors;
  for (std::uint64_t i = 0; i < kTensors; ++i) {
    tensors.push_back({memory.get() + i * 2'048, 1'024, DType::BFloat16, 0, 0});
  }
  const ClipStep step(tensors, strict(1));
  // Kernels are loaded when they are first launched; not while a capture runs.
  enqueue(step, nullptr);
  must(cudaStreamSynchronize(nullptr), "step");
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream), "cudaStreamCreate");
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  enqueue(step, stream);
  cudaGraph_t graph = nullptr;
  must(cudaStreamEndCapture(stream, &graph), "capture");
  std::size_t nodes = 0;
  must(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
  EXPECT_EQ(nodes, 3U);
  must(cudaGraphDestroy(graph), "cudaGraphDestroy");
  must(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

TEST_F(Gpu, a_hundred_steps_give_the_same_bits) {
  const HostTensor tensor = make_tensor(DType::BFloat16, 5'000'011, Values::Normal);
  const DeviceMemory memory = uploaded(tensor.bytes);
  const ClipStep step({{memory.get(), tensor.count(), DType::BFloat16, 0, 0}}, strict(1e9));
  enqueue(step, nullptr);
  const ClipOutcome first = step.outcome();
  for (int i = 0; i < 100; ++i) {
    enqueue(step, nullptr);
    ASSERT_EQ(step.outcome().norm, first.norm) << i;
  }
  EXPECT_NEAR(first.norm / std::sqrt(static_cast<double>(exact_power_sum(tensor, 2))), 1, 1e-7);
}

}  // namespace
}  // namespace gradsync::kernels
