#include "device/transfer/node_copies.hpp"

#include "base/text/hash.hpp"
#include "device/device_error.hpp"
#include "device/math/chunk_reference.hpp"
#include "device/math/norm_sum.hpp"
#include "device/stats/box_hash.hpp"
#include "device/step/node_rows.hpp"
#include "device/transfer/node_contributions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <span>
#include <string_view>

namespace gradsync::device {

namespace {

/// The stamp of a gradient that is there: rows of this data path belong to no attempt.
constexpr std::uint64_t kHere = 1;

/// Over the hashes of its chunks. 0 would say that it was not taken.
std::uint64_t fingerprint_of(std::span<const std::uint64_t> chunks) {
  const auto* const bytes = reinterpret_cast<const char*>(chunks.data());
  return std::max<std::uint64_t>(1, hash64(std::string_view(bytes, chunks.size_bytes())));
}

std::uint64_t hash_of_equal(std::uint64_t fingerprint) {
  StatsRow row;
  row.stamp = kHere;
  row.fingerprint = fingerprint;
  return hash_of_box({&row, 1}, 0, HashSums::In);
}

/// What is known of the results of a part that are on this node.
struct CopiesHere {
  bool some = false;                                               ///< a sum with a destination here has a gradient
  bool empty = false;                                              ///< one has none
  bool unlike = false;                                             ///< bits differ
  std::uint32_t rank = std::numeric_limits<std::uint32_t>::max();  ///< the lowest that gets one
};

CopiesHere copies_of(const LoadedPlan& plan, std::uint32_t number) {
  const LanePart& part = plan.layout().parts[number];
  CopiesHere found;
  for (std::size_t sum = 0; sum < plan.sums_of(part).size(); ++sum) {
    for (const LaneMember& destination : plan.sums_of(part)[sum].destinations) {
      const bool contributed = known_of(plan, number, sum) == SumKnown::Contributed;
      found.some = found.some || contributed;
      found.empty = found.empty || !contributed;
      const std::size_t slot = plan.slot(part.tensor, destination.rank);
      found.unlike = found.unlike || plan.attempt().differs[slot].load(std::memory_order_relaxed) != 0;
      found.rank = std::min(found.rank, destination.rank);
    }
  }
  return found;
}

class CopyHasher {
 public:
  explicit CopyHasher(const LoadedPlan& plan) : plan_(plan), nodes_(*plan.nodes()) {}

  /// Nothing was compared, and every sum has a gradient.
  [[nodiscard]] bool is_whole() const {
    const auto has_findings = [](const BucketState& bucket) { return bucket.has_findings(); };
    return std::ranges::none_of(plan_.attempt().buckets, has_findings) &&
           std::ranges::find(nodes_.attempt.compared, true) == nodes_.attempt.compared.end();
  }

  [[nodiscard]] std::uint64_t hash_of(const ComparedPart& compared) const {
    const std::uint32_t tensor = plan_.layout().parts[compared.part].tensor;
    if (!plan_.attempt().tensors[tensor].incomplete &&
        plan_.attempt().flagged[tensor].load(std::memory_order_relaxed) == 0) {
      return hash_of_equal(fingerprint(compared));
    }
    const CopiesHere copies = copies_of(plan_, compared.part);
    if (!copies.some) {
      return 0;
    }
    const LaneSum& counted = plan_.sums_of(plan_.layout().parts[compared.part]).front();
    if (!counted.destinations.empty() && known_of(plan_, compared.part, 0) == SumKnown::Empty) {
      return hash_of_copies_alone(copies.rank);
    }
    const std::uint64_t hash = hash_of_equal(fingerprint(compared));
    return copies.empty || copies.unlike ? hash_of_unlike(hash, copies.rank) : hash;
  }

 private:
  [[nodiscard]] std::uint64_t fingerprint(const ComparedPart& compared) const {
    const LanePart& part = plan_.layout().parts[compared.part];
    if (!nodes_.hashed[compared.part] || !nodes_.attempt.compared[plan_.layout().tensors[part.tensor].bucket]) {
      return 0;
    }
    const auto count = compared.held.end - compared.held.begin;
    return fingerprint_of(std::span(nodes_.attempt.hashes).subspan(compared.held.begin, count));
  }

  const LoadedPlan& plan_;
  const NodePlan& nodes_;
};

/// Reads one result of a part: its sum as the norm would count it, and its bits.
class ResultReading final : public PoolJob {
 public:
  ResultReading(
      const LoadedPlan& plan,
      const ComparedPart& compared,
      const LaneMember& from,
      OutputReader& outputs,
      const std::atomic<bool>& cancel
  )
      : plan_(plan),
        outputs_(outputs),
        chunks_(std::span(plan.nodes()->held).subspan(compared.held.begin, compared.held.end - compared.held.begin)),
        from_(from),
        dtype_(plan.bucket_of(plan.layout().parts[compared.part].tensor).dtype),
        cancel_(cancel),
        stats_(chunks_.size()),
        hashes_(chunks_.size()) {}

  [[nodiscard]] StatsRow row(WorkerPool& pool) {
    run(pool);
    StatsRow row{kHere, 0, 0, 1, 0, 0, 0, fingerprint_of(hashes_)};
    for (const ChunkStats& stats : stats_) {
      row.maximum = std::max(row.maximum, stats.maximum);
      row.nonfinite += stats.nonfinite;
      row.nan += stats.nan;
    }
    TensorSum sum{powers(), 1, row.maximum, row.nonfinite, row.nan};
    if (needs_rescaling(sum, p())) {
      scale_ = row.scale = rescaling_divisor(row.maximum, p());
      run(pool);
      sum.power_sum = powers();
    }
    if (row.nonfinite == 0) {  // else there is no sum
      row.power_sum = sum.power_sum.high;
      row.power_sum_low = sum.power_sum.low;
    }
    return row;
  }

  void run_task(std::uint32_t task, std::size_t /*worker*/) noexcept override {
    if (cancel_.load(std::memory_order_relaxed)) {
      return;
    }
    const Chunk& chunk = chunks_[task];
    const void* const values = outputs_.read(plan_, chunk, from_, plan::size_of(dtype_));
    if (scale_ != 1) {
      stats_[task].power_sum = power_sum(dtype_, values, chunk.count(), p(), scale_);
      return;
    }
    ReduceChunk work;
    work.dtype = dtype_;
    work.count = chunk.count();
    work.sources = {&values, 1};
    work.power = plan_.power();
    stats_[task] = reduce_chunk(work);
    if (work.power == PowerKind::None && !std::isinf(p())) {
      stats_[task].power_sum = power_sum(dtype_, values, chunk.count(), p(), 1);
    }
    hashes_[task] = hash64({static_cast<const char*>(values), chunk.count() * plan::size_of(dtype_)});
  }

 private:
  void run(WorkerPool& pool) {
    pool.run(static_cast<std::uint32_t>(chunks_.size()), *this);
    if (cancel_.load(std::memory_order_relaxed)) {
      throw DeviceError("aborted", DeviceError::Kind::Aborted);
    }
  }

  [[nodiscard]] double p() const { return plan_.layout().norm_type; }

  [[nodiscard]] DoubleDouble powers() const {
    DoubleDouble sum;
    for (const ChunkStats& stats : stats_) {
      sum = sum + stats.power_sum;
    }
    return sum;
  }

  const LoadedPlan& plan_;
  OutputReader& outputs_;
  std::span<const Chunk> chunks_;
  LaneMember from_;
  plan::DType dtype_;
  const std::atomic<bool>& cancel_;
  double scale_ = 1;
  std::vector<ChunkStats> stats_;
  std::vector<std::uint64_t> hashes_;
};

const ComparedPart& compared_part(const LoadedPlan& plan, StatsBox box) {
  const std::vector<std::vector<StatsBox>>& classes = plan.layout().nodes.classes;
  for (std::size_t number = 0; number < classes.size(); ++number) {
    const auto found = std::ranges::lower_bound(classes[number], box);
    if (found != classes[number].end() && *found == box) {
      return plan.nodes()->classes[number][static_cast<std::size_t>(found - classes[number].begin())];
    }
  }
  throw DeviceError(fmt::format("part {} of tensor {} is compared with no other node", box.second, box.first));
}

}  // namespace

std::uint64_t hash_of_whole_class(std::size_t parts) {
  return hash_of_class(std::vector<std::uint64_t>(parts, hash_of_equal(0)));
}

std::vector<std::uint64_t> hash_copies(const LoadedPlan& plan) {
  const CopyHasher hasher(plan);
  if (hasher.is_whole()) {
    return plan.nodes()->whole_hashes;
  }
  std::vector<std::uint64_t> hashes;
  std::vector<std::uint64_t> boxes;
  for (const std::vector<ComparedPart>& one : plan.nodes()->classes) {
    boxes.clear();
    for (const ComparedPart& part : one) {
      boxes.push_back(hasher.hash_of(part));
    }
    const auto uncounted = std::ranges::find_if(boxes, [](std::uint64_t box) { return box != 0 && is_uncounted(box); });
    hashes.push_back(uncounted != boxes.end() ? *uncounted : hash_of_class(boxes));
  }
  return hashes;
}

RowsRead read_copies(
    const LoadedPlan& plan,
    const ReadRows& command,
    OutputReader& outputs,
    WorkerPool& pool,
    const std::atomic<bool>& cancel
) {
  check_wanted(command, plan.attempt().measured == command.tag, plan.nodes()->classes.size());
  RowsRead read{command.plan, command.tag, {}, {}};
  const CopyHasher hasher(plan);
  for (const std::uint32_t number : command.classes) {
    for (const ComparedPart& part : plan.nodes()->classes[number]) {
      read.box_hashes.push_back(hasher.hash_of(part));
    }
  }
  for (const auto& [tensor, box] : command.boxes) {
    const ComparedPart& compared = compared_part(plan, {tensor, box});
    const std::vector<LaneSum>& sums = plan.sums_of(plan.layout().parts[compared.part]);
    std::set<std::uint32_t> ranks;  // one may get a sum for itself and for a tied copy
    for (std::size_t sum = 0; sum < sums.size(); ++sum) {
      if (sums[sum].destinations.empty()) {
        continue;
      }
      const bool contributed = known_of(plan, compared.part, sum) == SumKnown::Contributed;
      const StatsRow row =
          contributed ? ResultReading(plan, compared, sums[sum].destinations.front(), outputs, cancel).row(pool)
                      : StatsRow();
      for (const LaneMember& destination : sums[sum].destinations) {
        if (ranks.insert(destination.rank).second) {
          read.rows.push_back({tensor, box, destination.rank, row});
        }
      }
    }
  }
  return read;
}

}  // namespace gradsync::device
