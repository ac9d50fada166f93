#pragma once
// A plan of data path `stats` on the lane: its layout checked against the mapped tables. Belongs to the lane thread.

#include "device/lane.hpp"
#include "device/loaded/compared_boxes.hpp"
#include "device/loaded/layout_check.hpp"
#include "device/math/norm_totals.hpp"
#include "device/stats/stats_plan.hpp"

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <vector>

namespace gradsync::device {

/// A holder's row, where it lies.
struct TableRow {
  std::byte* address = nullptr;
  std::uint64_t elements = 0;
  std::uint32_t rank = 0;
  bool first_of_box = false;
  bool elsewhere = false;  ///< of the first row of a box: another node counts it
  bool compared = false;   ///< of the first row of a box: other nodes hold it, or what it is tied to, as well
};

/// The last finish that decided nothing. Its rows may be read again, and have to say the same then.
struct RawFinish {
  Tag tag = 0;
  std::uint64_t stamp = 0;
  HashSums sums = HashSums::In;
  std::vector<bool> present = {};  ///< by row of the plan: it had a gradient when boxes were counted
};

struct StatsAttempt {
  NormTotals totals;            ///< scratch
  std::optional<Tag> measured;  ///< finished with apply == false
  std::optional<Tag> applied;   ///< its trainers multiply, or need not
  std::optional<RawFinish> raw = {};
};

class LoadedStats {
 public:
  /// `tables[rank]`: the rank's buffer, null where the rank is not here. Throws DeviceError naming what does not fit.
  LoadedStats(StatsPlan layout, const std::vector<BufferView>& tables);

  /// The layout without the holders, which are in `rows`, and without the boxes of other nodes.
  [[nodiscard]] const StatsPlan& layout() const { return layout_; }

  /// The rows of all tensors, in plan order; those of one tensor by box, then by rank.
  [[nodiscard]] const std::vector<TableRow>& rows() const { return rows_; }

  /// By tensor: the end of its rows, which is the begin of the next one's.
  [[nodiscard]] const std::vector<std::size_t>& ends() const { return ends_; }

  /// Finds the begin of the rows that a tied copy's box must agree with; `first` is the first row of that box. nullopt:
  /// none.
  [[nodiscard]] std::optional<std::size_t> counted_rows(std::size_t first) const {
    const auto found = counted_rows_.find(first);
    return found == counted_rows_.end() ? std::nullopt : std::optional(found->second);
  }

  /// Whether some ranks are on other nodes. Then nothing can be decided here.
  [[nodiscard]] bool is_part() const { return is_part_; }

  [[nodiscard]] const std::vector<ComparedClass>& classes() const { return classes_; }

  /// Returns the end of the rows of a box that begin there.
  [[nodiscard]] std::size_t end_of_box(std::size_t begin) const {
    std::size_t end = begin + 1;
    while (end < rows_.size() && !rows_[end].first_of_box) {
      ++end;
    }
    return end;
  }

  /// The part of it that steps write.
  [[nodiscard]] StatsAttempt& attempt() { return attempt_; }

  /// Unmapped under the plan: no command can run any more.
  [[nodiscard]] std::optional<BufferId> lost_buffer() const { return lost_buffer_; }

  void lose(BufferId buffer) { lost_buffer_ = buffer; }

 private:
  void place_rows(const std::vector<BufferView>& tables, BoxBegins& begins);
  void find_counted_rows(const BoxBegins& begins);
  void mark_elsewhere(const BoxBegins& begins);

  StatsPlan layout_;
  bool is_part_ = false;
  std::vector<TableRow> rows_;
  std::vector<std::size_t> ends_;
  std::unordered_map<std::size_t, std::size_t> counted_rows_;
  std::vector<ComparedClass> classes_;
  StatsAttempt attempt_;
  std::optional<BufferId> lost_buffer_;
};

}  // namespace gradsync::device
