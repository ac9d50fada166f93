#include "device/loaded/loaded_stats.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace gradsync::device {

namespace {

void check_tensor(
    const StatsPlan& layout,
    std::uint32_t index,
    const std::vector<BufferView>& tables,
    std::vector<std::vector<bool>>& named
) {
  const StatsTensor& tensor = layout.tensors[index];
  check_fit(tensor.clip_group < layout.clip_groups, [&] {
    return fmt::format("tensor {} is in clip group {}", index, tensor.clip_group);
  });
  check_fit(tensor.layer >= -1 && tensor.layer < static_cast<std::int64_t>(layout.layers), [&] {
    return fmt::format("tensor {} is in layer {} of {}", index, tensor.layer, layout.layers);
  });
  const StatsHolder* before = nullptr;
  for (const StatsHolder& holder : tensor.holders) {
    check_fit(holder.rank < tables.size(), [&] {
      return fmt::format("tensor {} is held by rank {} of {}", index, holder.rank, tables.size());
    });
    check_fit(holder.row < tables[holder.rank].size_bytes / sizeof(StatsRow), [&] {
      return fmt::format(
          "row {} of tensor {} ends outside the {} bytes of rank {}",
          holder.row,
          index,
          tables[holder.rank].size_bytes,
          holder.rank
      );
    });
    std::vector<bool>& rows = named[holder.rank];
    rows.resize(std::max<std::size_t>(rows.size(), std::size_t{holder.row} + 1));
    check_fit(!rows[holder.row], [&] {
      return fmt::format("row {} of rank {} is of tensor {} and of another", holder.row, holder.rank, index);
    });
    rows[holder.row] = true;
    check_fit(before == nullptr || std::tie(before->box, before->rank) < std::tie(holder.box, holder.rank), [&] {
      return fmt::format("the holders of tensor {} are not ordered by box and rank", index);
    });
    check_fit(before == nullptr || before->box != holder.box || before->elements == holder.elements, [&] {
      return fmt::format("box {} of tensor {} has two sizes", holder.box, index);
    });
    before = &holder;
  }
}

}  // namespace

LoadedStats::LoadedStats(StatsPlan layout, const std::vector<BufferView>& tables)
    : layout_(std::move(layout)),
      is_part_(std::ranges::any_of(tables, [](const BufferView& table) { return table.data == nullptr; })),
      attempt_{NormTotals(layout_.norm_type, layout_.clip_groups, layout_.layers), std::nullopt, std::nullopt} {
  check_buffers(layout_.world_size, layout_.norm_type, tables);
  check_fit(is_part_ || (layout_.elsewhere.empty() && layout_.classes.empty()), [] {
    return std::string("all ranks are here, and boxes are on other nodes");
  });
  BoxBegins begins = named_boxes(layout_);
  place_rows(tables, begins);
  find_counted_rows(begins);
  mark_elsewhere(begins);
  classes_ = compared_classes(layout_, begins);
  layout_.classes.clear();
  for (const ComparedClass& one : classes_) {
    for (const ComparedBox& box : one) {
      for (const BoxPlace& place : box.places) {
        rows_[place.begin].compared = true;
      }
    }
  }
}

void LoadedStats::place_rows(const std::vector<BufferView>& tables, BoxBegins& begins) {
  std::vector<std::vector<bool>> named(tables.size());
  ends_.reserve(layout_.tensors.size());
  for (std::uint32_t index = 0; index < layout_.tensors.size(); ++index) {
    check_tensor(layout_, index, tables, named);
    const std::vector<StatsHolder> holders = std::exchange(layout_.tensors[index].holders, {});
    for (std::size_t i = 0; i < holders.size(); ++i) {
      const StatsHolder& holder = holders[i];
      const bool first_of_box = i == 0 || holders[i - 1].box != holder.box;
      if (const auto begin = first_of_box ? begins.find({index, holder.box}) : begins.end(); begin != begins.end()) {
        begin->second = rows_.size();
      }
      rows_.push_back(
          {tables[holder.rank].data + std::size_t{holder.row} * sizeof(StatsRow),
           holder.elements,
           holder.rank,
           first_of_box}
      );
    }
    ends_.push_back(rows_.size());
  }
}

/// A plan that is not whole may have a tied copy here alone; other nodes compare it with what is counted.
void LoadedStats::find_counted_rows(const BoxBegins& begins) {
  for (const StatsTie& tie : layout_.ties) {
    for (std::uint32_t box = 0; box < tie.boxes.size(); ++box) {
      if (tie.boxes[box] < 0) {
        continue;
      }
      const auto copy = begins.at({tie.copy, box});
      const auto counted = begins.at({tie.counted, static_cast<std::uint32_t>(tie.boxes[box])});
      if (is_part_ && !(copy && counted)) {
        continue;
      }
      check_fit(copy && counted && *counted < *copy && rows_[*counted].elements == rows_[*copy].elements, [&] {
        return fmt::format(
            "box {} of tensor {} is no copy of box {} of tensor {}", box, tie.copy, tie.boxes[box], tie.counted
        );
      });
      counted_rows_.emplace(*copy, *counted);
    }
  }
}

void LoadedStats::mark_elsewhere(const BoxBegins& begins) {
  const std::vector<StatsBox> boxes = std::exchange(layout_.elsewhere, {});
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const auto [tensor, box] = boxes[i];
    check_fit(i == 0 || boxes[i - 1] < boxes[i], [] { return std::string("boxes of other nodes do not ascend"); });
    const std::optional<std::size_t> begin = begins.at(boxes[i]);
    check_fit(begin.has_value(), [tensor = tensor, box = box] {
      return fmt::format("box {} of tensor {} is counted elsewhere, and no rank here holds it", box, tensor);
    });
    rows_[*begin].elsewhere = true;
  }
}

}  // namespace gradsync::device
