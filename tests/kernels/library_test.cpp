// The C interface of kernels/library, on the emulation: rows are those of the kernels, bit for bit, and what is wrong
// is said in words.

#include "kernels/device_kernels.hpp"
#include "kernels/gradients.hpp"
#include "kernels/library/gradsync_kernels.h"
#include "simt.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

namespace gradsync::kernels {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kStamp = 0x5eed;

struct Row {
  std::uint64_t stamp = kStamp;
  PowerSum sum{};
};

static_assert(sizeof(Row) == 64);

struct Destroy {
  void operator()(gradsync_table* table) const { gradsync_table_destroy(table); }
};

/// Tensors on the emulated device, and a table of them.
class Library : public testing::Test {
 protected:
  Library() { simt::settings() = {}; }

  ~Library() override { simt::settings() = {}; }

  void load(const std::vector<HostTensor>& tensors) {
    std::vector<gradsync_tensor> described;
    for (const HostTensor& tensor : tensors) {
      described.push_back({tensor.count(), static_cast<std::uint32_t>(tensor.dtype), 0});
      device_.emplace_back(tensor.offset + tensor.bytes.size());
      device_.back().upload(tensor.bytes.data(), tensor.bytes.size(), tensor.offset);
      addresses_.push_back(reinterpret_cast<std::uintptr_t>(device_.back().get() + tensor.offset));
    }
    table_.reset(gradsync_table_create(described.data(), static_cast<std::uint32_t>(described.size())));
    ASSERT_NE(table_, nullptr) << gradsync_kernels_error();
    memory_ = std::make_unique<DeviceMemory>(gradsync_table_memory(table_.get()));
    ASSERT_EQ(gradsync_table_load(table_.get(), memory_->get(), nullptr), 0) << gradsync_kernels_error();
    rows_.resize(tensors.size());
  }

  int measure(double p, bool fingerprint) {
    rows_.assign(rows_.size(), Row());
    return gradsync_measure(
        table_.get(), memory_->get(), addresses_.data(), p, fingerprint ? 1 : 0, rows_.data(), nullptr
    );
  }

  int scale(double coefficient) {
    return gradsync_scale(table_.get(), memory_->get(), addresses_.data(), coefficient, nullptr);
  }

  std::vector<std::byte> bytes_of(std::size_t tensor, const HostTensor& like) {
    std::vector<std::byte> bytes(like.bytes.size());
    device_[tensor].download(bytes.data(), bytes.size(), like.offset);
    return bytes;
  }

  std::vector<DeviceMemory> device_;
  std::vector<std::uint64_t> addresses_;
  std::unique_ptr<gradsync_table, Destroy> table_;
  std::unique_ptr<DeviceMemory> memory_;
  std::vector<Row> rows_;
};

std::vector<HostTensor> some_tensors() {
  std::vector<HostTensor> tensors;
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16, DType::Float64}) {
    for (const std::uint64_t count : {0, 1, 7, 3'001, 70'001}) {
      tensors.push_back(make_tensor(dtype, count, count == 7 ? Values::Nonfinite : Values::Normal));
      tensors.back().offset = count % 2 == 0 ? 0 : size_of(dtype);
    }
  }
  return tensors;
}

void expect_equal(const PowerSum& a, const PowerSum& b, std::size_t tensor) {
  EXPECT_EQ(std::memcmp(&a, &b, sizeof(PowerSum)), 0) << "tensor " << tensor << ": " << a.high << " and " << b.high;
}

TEST_F(Library, rows_are_the_sums_of_the_kernels_and_stamps_are_left_alone) {
  const std::vector<HostTensor> tensors = some_tensors();
  load(tensors);
  for (const double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    for (const bool fingerprint : {false, true}) {
      ASSERT_EQ(measure(p, fingerprint), 0) << gradsync_kernels_error();
      const Measured wanted = make_device_kernels()->measure(tensors, p, fingerprint);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_EQ(rows_[i].stamp, kStamp);
        expect_equal(rows_[i].sum, wanted.tensors[i], i);
      }
    }
  }
}

TEST_F(Library, an_absent_tensor_is_neither_read_nor_scaled_and_its_sum_is_zero) {
  const std::vector<HostTensor> tensors = some_tensors();
  load(tensors);
  const std::vector<std::uint64_t> all = addresses_;
  ASSERT_EQ(measure(2, true), 0);
  const std::vector<Row> before = rows_;
  for (std::size_t i = 0; i < tensors.size(); i += 2) {
    addresses_[i] = 0;
  }
  ASSERT_EQ(measure(2, true), 0) << gradsync_kernels_error();
  ASSERT_EQ(scale(0.5), 0) << gradsync_kernels_error();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool absent = i % 2 == 0;
    if (absent) {
      EXPECT_EQ(rows_[i].sum.high, 0);
      EXPECT_EQ(rows_[i].sum.nonfinite, 0U);
    } else {
      expect_equal(rows_[i].sum, before[i].sum, i);
    }
    const bool changed = bytes_of(i, tensors[i]) != tensors[i].bytes;
    EXPECT_EQ(changed, !absent && tensors[i].count() != 0) << i;
  }
  addresses_ = all;
  ASSERT_EQ(measure(2, false), 0);
  EXPECT_EQ(rows_[4].sum.high, before[4].sum.high) << "it is read again as soon as it is there";
}

TEST_F(Library, tensors_are_multiplied_as_the_kernels_multiply) {
  std::vector<HostTensor> tensors = some_tensors();
  load(tensors);
  ASSERT_EQ(scale(0.3), 0) << gradsync_kernels_error();
  ClipOutcome outcome{};
  outcome.multiplier = 0.3;
  outcome.multiply = 1;
  make_device_kernels()->scale(tensors, {outcome});
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(bytes_of(i, tensors[i]), tensors[i].bytes) << i;
  }
}

TEST_F(Library, a_coefficient_of_1_launches_nothing) {
  load(some_tensors());
  simt::settings() = {};
  ASSERT_EQ(scale(1.0), 0);
  EXPECT_EQ(simt::settings().launches, 0U);
}

TEST_F(Library, two_dtypes_take_three_launches_to_be_measured_whatever_their_number) {
  std::vector<HostTensor> tensors;
  for (int i = 0; i < 2'000; ++i) {
    const DType dtype = i % 2 == 0 ? DType::BFloat16 : DType::Float32;
    tensors.push_back(make_tensor(dtype, i < 4 ? 70'000 : 5, Values::Normal));
  }
  load(tensors);
  simt::settings() = {};
  ASSERT_EQ(measure(2, true), 0);
  EXPECT_EQ(simt::settings().launches, 3U);
}

TEST_F(Library, after_a_launch_that_failed_the_next_pass_is_right) {
  const std::vector<HostTensor> tensors = some_tensors();
  load(tensors);
  ASSERT_EQ(measure(2, false), 0);
  const std::vector<Row> right = rows_;
  simt::settings().launches = 0;
  simt::settings().failing_launch = 2;
  EXPECT_NE(measure(2, false), 0);
  EXPECT_THAT(gradsync_kernels_error(), HasSubstr("measuring: "));
  simt::settings() = {};
  ASSERT_EQ(measure(2, false), 0) << gradsync_kernels_error();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    expect_equal(rows_[i].sum, right[i].sum, i);
  }
}

TEST_F(Library, a_device_without_code_is_said_before_anything_is_launched) {
  EXPECT_EQ(gradsync_kernels_check(), 0) << gradsync_kernels_error();
  simt::settings().capability = 75;
  EXPECT_NE(gradsync_kernels_check(), 0);
  EXPECT_STREQ(gradsync_kernels_error(), "no code for compute capability 7.5");
  EXPECT_EQ(simt::settings().launches, 0U);
  load({make_tensor(DType::Float32, 10, Values::Normal)});
  EXPECT_NE(measure(2, false), 0) << "the device itself refuses";
}

TEST_F(Library, refusals_are_said_in_words) {
  const gradsync_tensor strange{1, 7, 0};
  EXPECT_EQ(gradsync_table_create(&strange, 1), nullptr);
  EXPECT_THAT(gradsync_kernels_error(), HasSubstr("tensors[0].dtype is 7"));
  load({make_tensor(DType::Float32, 10, Values::Normal)});
  EXPECT_NE(measure(0.5, false), 0);
  EXPECT_THAT(gradsync_kernels_error(), HasSubstr("p is 0.5"));
  addresses_[0] += 2;
  EXPECT_NE(measure(2, false), 0);
  EXPECT_THAT(gradsync_kernels_error(), HasSubstr("tensors[0].address"));
  addresses_[0] -= 2;
  EXPECT_EQ(measure(2, false), 0);
  EXPECT_NE(gradsync_measure(table_.get(), memory_->get(), addresses_.data(), 2, 0, nullptr, nullptr), 0);
  EXPECT_STREQ(gradsync_kernels_error(), "rows is null");
  EXPECT_NE(gradsync_measure(table_.get(), memory_->get() + 8, addresses_.data(), 2, 0, rows_.data(), nullptr), 0);
  EXPECT_THAT(gradsync_kernels_error(), HasSubstr("memory"));
}

TEST_F(Library, a_table_without_tensors_has_no_rows) {
  load({});
  EXPECT_EQ(measure(2, true), 0) << gradsync_kernels_error();
  EXPECT_EQ(scale(0.5), 0) << gradsync_kernels_error();
}

struct DestroyGate {
  void operator()(gradsync_gate* gate) const { gradsync_gate_destroy(gate); }
};

constexpr double kPatient = 100;  // seconds, in which no test ends by patience

/// A stream that waits at a gate. The emulation's stream is a thread while there is a gate.
class GateTest : public Library {
 protected:
  ~GateTest() override { gate_.reset(); }

  void open(const std::vector<HostTensor>& tensors) {
    load(tensors);
    gate_.reset(gradsync_gate_create(table_.get(), nullptr));
    ASSERT_NE(gate_, nullptr) << gradsync_kernels_error();
  }

  int defer(double patience_s = kPatient) {
    return gradsync_defer(
        table_.get(),
        memory_->get(),
        addresses_.data(),
        2,
        0,
        gate_.get(),
        patience_s,
        norm_.get(),
        sizeof(double),
        nullptr
    );
  }

  int release(double coefficient, bool zero = false, double norm = 5) {
    return gradsync_gate_release(gate_.get(), coefficient, zero ? 1 : 0, norm);
  }

  double norm() {
    double found = 0;
    norm_.download(&found, sizeof(found));
    return found;
  }

  void expect_zeros(const std::vector<HostTensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_THAT(bytes_of(i, tensors[i]), testing::Each(std::byte{0})) << i;
    }
  }

  DeviceMemory norm_{sizeof(double)};
  std::unique_ptr<gradsync_gate, DestroyGate> gate_;
};

TEST_F(GateTest, a_step_has_the_rows_and_the_products_of_one_that_is_waited_for) {
  std::vector<HostTensor> tensors = some_tensors();
  open(tensors);
  for (const double coefficient : {0.3, 1.0, 0.7}) {
    const Measured wanted = make_device_kernels()->measure(tensors, 2, false);
    ASSERT_EQ(defer(), 0) << gradsync_kernels_error();  // which returns although nobody has released the stream
    ASSERT_EQ(gradsync_gate_await_rows(gate_.get()), 0);
    const auto* const rows = static_cast<const Row*>(gradsync_gate_rows(gate_.get()));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      expect_equal(rows[i].sum, wanted.tensors[i], i);
    }
    ASSERT_EQ(release(coefficient, false, coefficient + 1), 0);
    EXPECT_EQ(norm(), coefficient + 1);
    ClipOutcome outcome{};
    outcome.multiplier = coefficient;
    outcome.multiply = 1;
    make_device_kernels()->scale(tensors, {outcome});
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(bytes_of(i, tensors[i]), tensors[i].bytes) << i;
    }
  }
}

TEST_F(GateTest, zeros_take_the_place_of_nan) {
  const std::vector<HostTensor> tensors = some_tensors();
  open(tensors);
  ASSERT_EQ(defer(), 0);
  ASSERT_EQ(release(0, true), 0);
  expect_zeros(tensors);
}

TEST_F(GateTest, a_stream_that_nobody_releases_is_released_with_zeros) {
  const std::vector<HostTensor> tensors = some_tensors();
  open(tensors);
  ASSERT_EQ(defer(0.05), 0);
  EXPECT_TRUE(std::isnan(norm())) << "this waits for the stream";
  expect_zeros(tensors);
  EXPECT_NE(release(1), 0) << "it was too late, and changes nothing";
  EXPECT_NE(gradsync_gate_await_rows(gate_.get()), 0);
}

TEST_F(GateTest, the_first_release_counts) {
  open({make_tensor(DType::Float32, 10, Values::Normal)});
  ASSERT_EQ(defer(), 0);
  EXPECT_EQ(release(0.5, false, 7), 0);
  EXPECT_NE(release(0, true, 8), 0);
  EXPECT_EQ(norm(), 7);
}

TEST_F(GateTest, one_step_is_under_way_at_a_time) {
  open({make_tensor(DType::Float32, 10, Values::Normal)});
  ASSERT_EQ(defer(), 0);
  EXPECT_NE(defer(), 0);
  EXPECT_STREQ(gradsync_kernels_error(), "the stream has not come to the step before");
  ASSERT_EQ(gradsync_gate_await_rows(gate_.get()), 0);
  EXPECT_EQ(release(1), 0);
  EXPECT_EQ(defer(), 0) << gradsync_kernels_error();
}

TEST_F(GateTest, after_what_it_refuses_the_stream_goes_on) {
  open({make_tensor(DType::Float32, 10, Values::Normal)});
  addresses_[0] += 2;
  EXPECT_NE(defer(), 0);
  EXPECT_THAT(gradsync_kernels_error(), HasSubstr("tensors[0].address"));
  EXPECT_NE(gradsync_gate_await_rows(gate_.get()), 0);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  addresses_[0] -= 2;
  ASSERT_EQ(defer(), 0) << gradsync_kernels_error();
  ASSERT_EQ(gradsync_gate_await_rows(gate_.get()), 0);
  EXPECT_EQ(release(1), 0);
}

TEST_F(GateTest, a_gate_that_goes_releases_its_stream_with_zeros) {
  const std::vector<HostTensor> tensors = some_tensors();
  open(tensors);
  ASSERT_EQ(defer(), 0);
  gate_.reset();
  expect_zeros(tensors);
}

TEST_F(GateTest, a_device_that_cannot_wait_for_memory_has_no_gate) {
  load({});
  ASSERT_EQ(::setenv("GRADSYNC_SIMT_NO_MEMOPS", "1", 1), 0);
  EXPECT_EQ(gradsync_gate_create(table_.get(), nullptr), nullptr);
  ::unsetenv("GRADSYNC_SIMT_NO_MEMOPS");
  EXPECT_THAT(gradsync_kernels_error(), HasSubstr("cuStreamWaitValue64: CUDA error 801"));
}

TEST(LibraryVersion, is_that_of_the_header) {
  EXPECT_EQ(gradsync_kernels_abi(), static_cast<std::uint32_t>(GRADSYNC_KERNELS_ABI));
  EXPECT_STREQ(gradsync_kernels_device(), "cpu");
}

}  // namespace
}  // namespace gradsync::kernels
