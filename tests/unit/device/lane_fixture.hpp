#pragma once
// A host lane with arenas that the test sees as a trainer does: through its own mapping of the same memfd.

#include "arithmetic/half.hpp"
#include "device/host/host_lane.hpp"
#include "device/memory/arena.hpp"
#include "unit/device/whole_tensors.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::device {

/// Reports in the order of arrival, with a deadline on every wait.
class ReportBox {
 public:
  void put(LaneReport report) {
    const std::lock_guard lock(mutex_);
    reports_.push_back(std::move(report));
    arrived_.notify_all();
  }

  LaneReport take() {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, std::chrono::seconds(60), [this] { return !reports_.empty(); })) {
      ADD_FAILURE() << "no report within 60 s";
      return Failed{0, 0, 0, false, false, "no report"};
    }
    LaneReport report = std::move(reports_.front());
    reports_.pop_front();
    return report;
  }

  [[nodiscard]] std::size_t waiting() {
    const std::lock_guard lock(mutex_);
    return reports_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<LaneReport> reports_;
};

/// A trainer's side of an arena.
class ClientArena {
 public:
  explicit ClientArena(std::uint64_t size_bytes) : size_bytes_(size_bytes) {
    auto fd = create_arena(size_bytes);
    if (!fd) {
      throw std::runtime_error(fd.error().message);
    }
    fd_ = std::move(*fd);
    data_ = static_cast<std::byte*>(::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
  }

  ClientArena(ClientArena&& other) noexcept
      : fd_(std::move(other.fd_)), size_bytes_(other.size_bytes_), data_(std::exchange(other.data_, nullptr)) {}

  ClientArena& operator=(ClientArena&&) = delete;

  ~ClientArena() {
    if (data_ != nullptr) {
      ::munmap(data_, size_bytes_);
    }
  }

  [[nodiscard]] UniqueFd descriptor() const { return UniqueFd(::dup(fd_.get())); }

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }

  [[nodiscard]] std::byte* data() const { return data_; }

  template <typename T>
  [[nodiscard]] T* at(std::uint64_t offset_bytes) const {
    return reinterpret_cast<T*>(data_ + offset_bytes);
  }

 private:
  UniqueFd fd_;
  std::uint64_t size_bytes_;
  std::byte* data_ = nullptr;
};

/// One plan, tensors laid out one after the other, ranks with buffers 1 … world.
class LaneFixture : public testing::Test {
 protected:
  static constexpr PlanId kPlan = 42;

  struct TensorSpec {
    std::uint64_t numel = 0;
    std::uint32_t bucket = 0;
    std::uint32_t clip_group = 0;
    std::int32_t layer = -1;
  };

  struct BucketSpec {
    plan::DType dtype = plan::DType::Float32;
    Groups groups;
    double divisor = 1.0;
  };

  void start(int threads) {
    lane_ = std::make_unique<HostLane>(HostLaneOptions{threads}, [this](LaneReport report) {
      box_.put(std::move(report));
    });
  }

  LanePlan lay_out(
      std::int64_t world, const std::vector<BucketSpec>& buckets, const std::vector<TensorSpec>& tensors, double p = 2
  ) {
    LanePlan layout = empty_layout(world, p);
    for (const BucketSpec& bucket : buckets) {
      add_bucket(layout, bucket.dtype, bucket.groups, bucket.divisor);
    }
    std::uint64_t offset = 0;
    for (const TensorSpec& tensor : tensors) {
      add_tensor(layout, tensor.bucket, tensor.numel, offset, tensor.clip_group, tensor.layer);
      offset += plan::align_up(tensor.numel * plan::size_of(layout.buckets[tensor.bucket].dtype));
    }
    while (arenas_.size() < static_cast<std::size_t>(world)) {
      arenas_.emplace_back(std::max<std::uint64_t>(offset, 64));
    }
    return layout;
  }

  /// Maps the arenas and loads the plan.
  void load(const LanePlan& layout, int threads = 2) {
    layout_ = layout;
    if (!lane_) {
      start(threads);
    }
    for (std::size_t rank = 0; rank < arenas_.size(); ++rank) {
      map(rank);
    }
    lane_->submit(LoadPlan{kPlan, layout});
    expect<Loaded>();
  }

  void map(std::size_t rank) {
    lane_->submit(MapBuffer{rank + 1, arenas_[rank].descriptor(), arenas_[rank].size_bytes()});
    expect<Mapped>();
  }

  template <typename Report>
  Report expect() {
    LaneReport report = box_.take();
    if (const auto* failed = std::get_if<Failed>(&report); failed != nullptr && !std::is_same_v<Report, Failed>) {
      ADD_FAILURE() << "failed: " << failed->message;
    }
    if (auto* wanted = std::get_if<Report>(&report)) {
      return std::move(*wanted);
    }
    ADD_FAILURE() << "a report of another kind: " << report.index();
    return {};
  }

  void reduce_all(Tag tag, const std::vector<UnusedTensor>& unused = {}, bool compare = false) {
    for (std::uint32_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) {
      std::vector<UnusedTensor> here;
      for (const UnusedTensor& tensor : unused) {
        if (layout_.tensors[tensor.tensor].bucket == bucket) {
          here.push_back(tensor);
        }
      }
      lane_->submit(ReduceBucket{kPlan, tag, bucket, here, compare});
    }
    for (std::size_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) {
      EXPECT_EQ(expect<Reduced>().bucket, bucket);
    }
  }

  StepMath finish(Tag tag, const std::vector<plan::ClipRule>& rules, double scale = 1, bool apply = true) {
    lane_->submit(FinishStep{kPlan, tag, scale, rules, apply});
    return expect<Finished>().math;
  }

  static plan::ClipRule strict(std::optional<double> max_norm) {
    return plan::ClipRule{max_norm, plan::ClipMode::Strict, plan::ZeroRule::Refuse, plan::DType::Float32};
  }

  [[nodiscard]] std::uint64_t numel(std::size_t tensor) const {
    return layout_.parts[layout_.tensors[tensor].first_part].elements;
  }

  template <typename T = float>
  T* values(std::uint32_t tensor, std::int64_t rank) {
    return arenas_[static_cast<std::size_t>(rank)].at<T>(layout_.arenas[0].input[tensor]);
  }

  template <typename T>
  void set(std::uint32_t tensor, std::int64_t rank, const std::vector<T>& given) {
    ASSERT_EQ(given.size(), numel(tensor));
    std::memcpy(values<T>(tensor, rank), given.data(), given.size() * sizeof(T));
  }

  template <typename T>
  std::vector<T> get(std::uint32_t tensor, std::int64_t rank) {
    return {values<T>(tensor, rank), values<T>(tensor, rank) + numel(tensor)};
  }

  ReportBox box_;
  std::vector<ClientArena> arenas_;
  LanePlan layout_;
  std::unique_ptr<HostLane> lane_;  ///< last: its thread uses the box
};

}  // namespace gradsync::device
