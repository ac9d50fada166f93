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

ClipRule strict(double max_norm) { return {max_norm, ClipMode::Strict, NormType::Float32}; }

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
  // Powers of two at the start, around 2^31 and at the end: the norm is exactly 5.
  const std::uint16_t three = 0x4040;
  const std::uint16_t four = 0x4080;
  memory.upload(&three, 2, 0);
  memory.upload(&four, 2, (kCount - 1) * 2);
  const ClipStep step({{memory.get(), kCount, DType::BFloat16, 0, 0}}, strict(2.5));
  enqueue(step, nullptr);
  must(cudaStreamSynchronize(nullptr), "step");
  EXPECT_EQ(step.outcome().norm, 5);
  EXPECT_EQ(step.outcome().coefficient, 0.5);
  std::uint16_t last = 0;
  memory.download(&last, 2, (kCount - 1) * 2);
  EXPECT_EQ(last, 0x4000);
}

TEST_F(Gpu, ten_thousand_tensors_take_three_launches) {
  constexpr std::uint64_t kTensors = 10'000;
  const DeviceMemory memory(kTensors * 2'048);
  memory.zero();
  std::vector<TensorSpec> tensors;
  for (std::uint64_t i = 0; i < kTensors; ++i) {
    tensors.push_back({memory.get() + i * 2'048, 1'024, DType::BFloat16, 0, 0});
  }
  const ClipStep step(tensors, strict(1));
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
