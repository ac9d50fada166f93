#include "device/step/node_rows.hpp"

#include "device/stats/box_hash.hpp"
#include "device/stats/stats_row.hpp"
#include "device/step/stats_finish.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace gradsync::device {

namespace {

constexpr std::size_t kBoxesPerCheck = 256;  // between two looks at `cancel`

void check(std::size_t box, const std::atomic<bool>& cancel) {
  if (box % kBoxesPerCheck == 0 && cancel.load(std::memory_order_relaxed)) {
    throw DeviceError("aborted", DeviceError::Kind::Aborted);
  }
}

StatsRow row_again(const LoadedStats& plan, const RawFinish& counted, std::uint32_t tensor, std::size_t at) {
  const TableRow& held = plan.rows()[at];
  const StatsRow row = copy_row(held.address);
  if ((row.stamp != 0) != counted.present[at]) {
    const char* const changed = row.stamp != 0 ? "had no gradient when the step was summed, and has one now"
                                               : "had a gradient when the step was summed, and has none now";
    throw RowError(tensor, held.rank, {"stamp", fmt::format("is {}: it {}", row.stamp, changed)});
  }
  return row;
}

/// Hashes boxes one after the other, in memory that is allocated once.
class BoxHasher {
 public:
  BoxHasher(const LoadedStats& plan, const RawFinish& counted, const std::atomic<bool>& cancel)
      : plan_(plan), counted_(counted), cancel_(cancel) {}

  [[nodiscard]] std::uint64_t operator()(const ComparedBox& box) {
    check(hashed_++, cancel_);
    rows_.clear();
    bool counted = !box.is_here();  // else another node has to say so
    std::optional<std::uint32_t> copy;
    for (const BoxPlace& place : box.places) {
      const std::size_t end = plan_.end_of_box(place.begin);
      for (std::size_t at = place.begin; at < end; ++at) {
        rows_.push_back(row_again(plan_, counted_, place.box.first, at));
        if (rows_.back().stamp != 0) {
          counted = counted || place.box == box.box;
          copy = copy.value_or(plan_.rows()[at].rank);
        }
      }
    }
    return counted || !copy ? hash_of_box(rows_, plan_.rows()[box.places.front().begin].rank, counted_.sums)
                            : hash_of_copies_alone(*copy);
  }

 private:
  const LoadedStats& plan_;
  const RawFinish& counted_;
  const std::atomic<bool>& cancel_;
  std::vector<StatsRow> rows_;
  std::size_t hashed_ = 0;
};

const ComparedBox& compared_box(const LoadedStats& plan, StatsBox box) {
  for (const ComparedClass& one : plan.classes()) {
    const auto found = std::ranges::lower_bound(one, box, {}, &ComparedBox::box);
    if (found != one.end() && found->box == box) {
      return *found;
    }
  }
  throw DeviceError(fmt::format("box {} of tensor {} is compared with no other node", box.second, box.first));
}

void add_rows(const LoadedStats& plan, const RawFinish& counted, const BoxPlace& place, std::vector<HeldRow>& rows) {
  const auto [tensor, box] = place.box;
  const std::size_t end = plan.end_of_box(place.begin);
  for (std::size_t at = place.begin; at < end; ++at) {
    const TableRow& held = plan.rows()[at];
    const StatsRow row = row_again(plan, counted, tensor, at);
    if (const auto fault = fault_of(row, counted.stamp, held.elements, plan.layout().norm_type)) {
      throw RowError(tensor, held.rank, *fault);
    }
    rows.push_back({tensor, box, held.rank, row});
  }
}

}  // namespace

std::vector<std::uint64_t> hash_classes(
    const LoadedStats& plan, const RawFinish& counted, const std::atomic<bool>& cancel
) {
  BoxHasher hash_of(plan, counted, cancel);
  std::vector<std::uint64_t> hashes;
  std::vector<std::uint64_t> boxes;
  for (const ComparedClass& one : plan.classes()) {
    boxes.clear();
    for (const ComparedBox& box : one) {
      boxes.push_back(hash_of(box));
    }
    hashes.push_back(hash_of_class(boxes));
  }
  return hashes;
}

void check_wanted(const ReadRows& command, bool finished, std::size_t classes) {
  if (!finished) {
    throw DeviceError(fmt::format("attempt {} had no raw finish: its rows are not known to be right", command.tag));
  }
  if (command.classes.empty() == command.boxes.empty()) {
    throw DeviceError("either hashes of classes are wanted or rows of boxes, one of the two");
  }
  for (const std::uint32_t number : command.classes) {
    if (number >= classes) {
      throw DeviceError(fmt::format("class {} is wanted, and the plan has {}", number, classes));
    }
  }
}

RowsRead read_rows(LoadedStats& plan, const ReadRows& command, const std::atomic<bool>& cancel) {
  const std::optional<RawFinish>& raw = plan.attempt().raw;
  check_wanted(command, raw && raw->tag == command.tag, plan.classes().size());
  RowsRead read{command.plan, command.tag, {}, {}};
  BoxHasher hash_of(plan, *raw, cancel);
  for (const std::uint32_t number : command.classes) {
    for (const ComparedBox& box : plan.classes()[number]) {
      read.box_hashes.push_back(hash_of(box));
    }
  }
  for (std::size_t i = 0; i < command.boxes.size(); ++i) {
    check(i, cancel);
    const StatsBox box = command.boxes[i];
    for (const BoxPlace& place : compared_box(plan, box).places) {
      add_rows(plan, *raw, place, read.rows);
    }
  }
  return read;
}

}  // namespace gradsync::device
