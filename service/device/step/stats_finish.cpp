#include "device/step/stats_finish.hpp"

#include "base/clock.hpp"
#include "device/math/norm_totals.hpp"
#include "device/stats/copies.hpp"
#include "device/stats/stats_row.hpp"
#include "device/step/node_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

namespace gradsync::device {

namespace {

constexpr std::size_t kRowsAhead = 24;           // tables lie page by page, so that their rows compete for the cache
constexpr std::uint32_t kTensorsPerCheck = 256;  // between two looks at `cancel`

/// One pass over the tables, tensor by tensor. `kRaw`: nothing is decided, and some boxes may be on other nodes. What
/// that needs is compiled out of the pass of a job that has one node.
template <bool kRaw>
class Reading {
 public:
  Reading(LoadedStats& plan, std::uint64_t stamp)
      : plan_(plan), layout_(plan.layout()), stamp_(stamp), totals_(plan.attempt().totals) {
    totals_.clear();
    if constexpr (kRaw) {
      had_gradient_.resize(plan.rows().size());
    }
  }

  void read_tensor(std::uint32_t index, std::size_t begin, std::size_t end) {
    tensor_ = &layout_.tensors[index];
    elements_ = present_ = false;
    nonfinite_count_ = nonfinite_of_box_ = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const TableRow& place = plan_.rows()[i];
      __builtin_prefetch(plan_.rows()[std::min(i + kRowsAhead, plan_.rows().size() - 1)].address);
      if (place.first_of_box) {
        first_.stamp = 0;
        uncounted_ = false;
        if constexpr (kRaw) {
          box_ = &place;
        }
        if (!tensor_->counted) {
          first_ = counted_row(i);
          uncounted_ = first_.stamp == 0 && plan_.counted_rows(i).has_value();
        }
        nonfinite_count_ += std::exchange(nonfinite_of_box_, 0);
      }
      const StatsRow row = copy_row(place.address);
      if constexpr (kRaw) {
        had_gradient_[i] = row.stamp != 0;
      }
      if (present_ && !place.first_of_box && row.stamp != 0 && row.nonfinite == 0 && row == first_) {
        continue;  // a copy of what was checked and counted
      }
      if (!plainly_right(row, stamp_, place.elements, layout_.norm_type)) {
        throw_if_wrong(index, place, row);
      }
      if (place.elements != 0) {
        take(row, place);
      }
    }
    nonfinite_count_ += nonfinite_of_box_;
    if (!divergent_.empty() && math_.divergence.size() < kMaxFindings) {
      math_.divergence.push_back(divergence(index, begin, end));
    }
    divergent_.clear();
    report(index);
  }

  [[nodiscard]] StepMath finish(const FinishStep& command) {
    report_uncounted();
    totals_.write(command.rules, command.scale, math_);
    return std::move(math_);
  }

  /// By row of the plan.
  [[nodiscard]] std::vector<bool> had_gradient() { return std::move(had_gradient_); }

  /// Findings alone. Which weights have a gradient of a tied copy alone is known when all nodes are heard.
  [[nodiscard]] StepMath finish_raw(NodeCells& cells) {
    cells = totals_.cells(std::exchange(math_.counted_elements, 0));
    return std::move(math_);
  }

 private:
  void throw_if_wrong(std::uint32_t index, const TableRow& place, const StatsRow& row) const {
    if (const auto fault = fault_of(row, stamp_, place.elements, layout_.norm_type)) {
      throw RowError(index, place.rank, *fault);
    }
  }

  /// Finds the row that a box of a tied copy must agree with: the first with a gradient among the holders of the
  /// counted tensor's box. stamp 0: none has a gradient.
  [[nodiscard]] StatsRow counted_row(std::size_t first_of_box) const {
    const std::vector<TableRow>& rows = plan_.rows();
    const std::optional<std::size_t> begin = plan_.counted_rows(first_of_box);
    for (std::size_t i = begin.value_or(rows.size()); i < rows.size() && (i == *begin || !rows[i].first_of_box); ++i) {
      if (const StatsRow row = copy_row(rows[i].address); row.stamp == stamp_) {
        return row;
      }
    }
    return {};
  }

  /// Holders of one box hold copies: the first that has a gradient speaks for them.
  void take(const StatsRow& row, const TableRow& place) {
    elements_ = true;
    if (row.stamp == 0) {
      missing_.push_back(place.rank);
      return;
    }
    if (row.nonfinite != 0) {
      if (!is_elsewhere()) {
        nonfinite_of_box_ = std::max(nonfinite_of_box_, row.nonfinite);
      }
      inputs_.emplace_back(place.rank, row.nonfinite);
    }
    present_ = true;
    if (uncounted_) {  // equal to each other is not enough
      if (!is_compared()) {
        divergent_.push_back(place.rank);
      }
      spoil(row);
      return;
    }
    if (first_.stamp == 0) {
      first_ = row;
      count(row, place.elements);
      return;
    }
    if (!agree(first_, row, layout_.norm_type)) {
      divergent_.push_back(place.rank);
    }
    spoil(row);
  }

  void count(const StatsRow& row, std::uint64_t elements) {
    if (tensor_->counted && !is_elsewhere()) {
      totals_.add(sum_of(row), tensor_->clip_group, tensor_->layer);
      math_.counted_elements += elements;
    } else {
      spoil(row);
    }
  }

  /// Whether the box is counted on another node.
  [[nodiscard]] bool is_elsewhere() const {
    if constexpr (kRaw) {
      return box_->elsewhere;
    } else {
      return false;
    }
  }

  /// Whether other nodes may have the gradient that copies must agree with. Then the coordinator judges them.
  [[nodiscard]] bool is_compared() const {
    if constexpr (kRaw) {
      return box_->compared;
    } else {
      return false;
    }
  }

  /// A value that is not finite makes the norm not finite, whether or not its tensor is counted: the step of that rank
  /// would spread it.
  void spoil(const StatsRow& row) {
    if (row.nonfinite != 0) {
      TensorSum sum;
      sum.nonfinite = row.nonfinite;
      sum.nan = row.nan;
      totals_.add(sum, tensor_->clip_group, tensor_->layer);
    }
  }

  void report(std::uint32_t index) {
    if (elements_ && !present_) {
      math_.absent.push_back(index);
      missing_.clear();
      return;
    }
    math_.nonfinite_total += nonfinite_count_;
    if (!inputs_.empty()) {
      report(math_.nonfinite, NonfiniteFinding{index, nonfinite_count_, sorted(inputs_)});
    }
    if (!missing_.empty()) {
      report(math_.missing, MissingFinding{index, sorted(missing_)});
    }
  }

  /// Looks at the tensor again, box by box. A tied copy has to agree with what is counted, whatever most of its holders
  /// have.
  [[nodiscard]] DivergenceFinding divergence(std::uint32_t index, std::size_t begin, std::size_t end) {
    DivergenceFinding finding{index, sorted(divergent_)};
    std::vector<std::pair<std::int64_t, StatsRow>> holders;
    for (std::size_t at = begin; at < end; ++at) {
      const TableRow& place = plan_.rows()[at];
      if (place.first_of_box) {
        add_copies(std::exchange(holders, {}), layout_.norm_type, finding);
      }
      const StatsRow row = copy_row(place.address);
      if (place.elements == 0 || row.stamp == 0) {
        continue;
      }
      if (tensor_->counted) {
        holders.emplace_back(place.rank, row);
      } else {
        const bool differs = std::ranges::binary_search(finding.ranks, place.rank);
        (differs ? finding.suspects : finding.majority).push_back(place.rank);
      }
    }
    add_copies(holders, layout_.norm_type, finding);
    std::ranges::sort(finding.majority);
    std::ranges::sort(finding.suspects);
    return finding;
  }

  /// A weight of which a tied copy alone has a gradient is not unused: its norm leaves that gradient out.
  void report_uncounted() {
    const auto absent = [this](std::uint32_t tensor) {
      return std::binary_search(math_.absent.begin(), math_.absent.end(), tensor);
    };
    std::vector<std::uint32_t> found;
    for (const StatsTie& tie : layout_.ties) {
      if (absent(tie.counted) && !absent(tie.copy)) {
        found.push_back(tie.counted);
      }
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    std::erase_if(math_.absent, [&](std::uint32_t tensor) {
      return std::binary_search(found.begin(), found.end(), tensor);
    });
    found.resize(std::min(found.size(), kMaxFindings));
    for (const std::uint32_t tensor : found) {
      math_.missing.push_back({tensor, holders_of(tensor)});
    }
    std::sort(math_.missing.begin(), math_.missing.end(), [](const auto& a, const auto& b) {
      return a.tensor < b.tensor;
    });
    math_.missing.resize(std::min(math_.missing.size(), kMaxFindings));
  }

  [[nodiscard]] std::vector<std::int64_t> holders_of(std::uint32_t tensor) const {
    std::vector<std::int64_t> ranks;
    for (std::size_t i = tensor == 0 ? 0 : plan_.ends()[tensor - 1]; i < plan_.ends()[tensor]; ++i) {
      if (plan_.rows()[i].elements != 0) {
        ranks.push_back(plan_.rows()[i].rank);
      }
    }
    return sorted(ranks);
  }

  template <typename Finding>
  static void report(std::vector<Finding>& findings, Finding finding) {
    if (findings.size() < kMaxFindings) {
      findings.push_back(std::move(finding));
    }
  }

  /// Leaves nothing for the next tensor.
  template <typename Item>
  static std::vector<Item> sorted(std::vector<Item>& items) {
    std::sort(items.begin(), items.end());
    return std::exchange(items, {});
  }

  const LoadedStats& plan_;
  const StatsPlan& layout_;
  std::uint64_t stamp_;
  NormTotals& totals_;
  StepMath math_;
  std::vector<bool> had_gradient_;  ///< `kRaw` only

  // of the tensor being read
  const StatsTensor* tensor_ = nullptr;
  const TableRow* box_ = nullptr;  ///< `kRaw` only: the first row of the box
  StatsRow first_;                 ///< the row that the box must agree with; stamp 0: none so far
  std::uint64_t nonfinite_count_ = 0;
  std::uint64_t nonfinite_of_box_ = 0;
  bool uncounted_ = false;  ///< of a tied copy's box: the box that is counted for it has no gradient
  bool elements_ = false;   ///< some rank holds some
  bool present_ = false;    ///< some rank that does has a gradient
  std::vector<std::pair<std::int64_t, std::uint64_t>> inputs_;
  std::vector<std::int64_t> divergent_;
  std::vector<std::int64_t> missing_;
};

void check_stamp(const FinishStep& command) {
  if (command.stamp == 0) {
    throw DeviceError("stamp is 0, which means that there is no gradient");
  }
}

template <bool kRaw>
void read_all(const LoadedStats& plan, Reading<kRaw>& reading, const std::atomic<bool>& cancel) {
  std::size_t begin = 0;
  for (std::uint32_t tensor = 0; tensor < plan.ends().size(); ++tensor) {
    if (tensor % kTensorsPerCheck == 0 && cancel.load(std::memory_order_relaxed)) {
      throw DeviceError("aborted", DeviceError::Kind::Aborted);
    }
    reading.read_tensor(tensor, begin, plan.ends()[tensor]);
    begin = plan.ends()[tensor];
  }
}

}  // namespace

StepMath finish_stats(LoadedStats& plan, const FinishStep& command, const std::atomic<bool>& cancel) {
  check_unapplied(plan.attempt().applied, command.tag);
  check_rules(command, plan.layout().clip_groups);
  check_stamp(command);
  if (plan.is_part()) {
    throw DeviceError("some ranks of the plan are on other nodes: a norm of those that are here would be wrong");
  }
  const auto start = std::chrono::steady_clock::now();
  Reading<false> reading(plan, command.stamp);
  read_all(plan, reading, cancel);
  StepMath math = reading.finish(command);
  math.norm_s = seconds(std::chrono::steady_clock::now() - start);
  (command.apply ? plan.attempt().applied : plan.attempt().measured) = command.tag;
  return math;
}

Finished finish_raw(LoadedStats& plan, const FinishStep& command, const std::atomic<bool>& cancel) {
  check_unapplied(plan.attempt().applied, command.tag);
  check_stamp(command);
  if (!command.rules.empty() || command.apply) {
    throw DeviceError("a raw finish decides nothing: it has no clip rules, and multiplies nothing");
  }
  plan.attempt().raw.reset();
  const auto start = std::chrono::steady_clock::now();
  Reading<true> reading(plan, command.stamp);
  read_all(plan, reading, cancel);
  RawStep raw;
  Finished finished{command.plan, command.tag, reading.finish_raw(raw.cells), nullptr};
  RawFinish counted{command.tag, command.stamp, command.sums, reading.had_gradient()};
  raw.class_hashes = hash_classes(plan, counted, cancel);
  finished.raw = std::make_shared<const RawStep>(std::move(raw));
  finished.math.norm_s = seconds(std::chrono::steady_clock::now() - start);
  plan.attempt().measured = command.tag;
  plan.attempt().raw = std::move(counted);
  return finished;
}

void scale_stats(LoadedStats& plan, const ScaleGradients& command) {
  check_unapplied(plan.attempt().applied, command.tag);
  check_measured(plan.attempt().measured, command.tag);
  check_outcomes(command, plan.layout().clip_groups);
  plan.attempt().applied = command.tag;
}

}  // namespace gradsync::device
