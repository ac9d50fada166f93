#include "device/loaded/compared_boxes.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gradsync::device {

namespace {

/// What has to be equal by a tie: the box that counts, and the boxes of copies of it.
template <typename Visit>
void for_tied_boxes(const StatsPlan& layout, Visit visit) {
  for (const StatsTie& tie : layout.ties) {
    for (std::uint32_t box = 0; box < tie.boxes.size(); ++box) {
      if (tie.boxes[box] >= 0) {
        visit(StatsBox{tie.counted, static_cast<std::uint32_t>(tie.boxes[box])}, StatsBox{tie.copy, box});
      }
    }
  }
}

std::optional<std::size_t> begin_of(const BoxBegins& begins, StatsBox box) {
  const auto found = begins.find(box);
  return found == begins.end() ? std::nullopt : found->second;
}

}  // namespace

BoxBegins named_boxes(const StatsPlan& layout) {
  BoxBegins boxes;
  for_tied_boxes(layout, [&](StatsBox counted, StatsBox copy) {
    boxes.try_emplace(counted);
    boxes.try_emplace(copy);
  });
  for (const std::vector<StatsBox>& one : layout.classes) {
    for (const StatsBox& box : one) {
      boxes.try_emplace(box);
    }
  }
  for (const StatsBox& box : layout.elsewhere) {
    boxes.try_emplace(box);
  }
  return boxes;
}

std::vector<ComparedClass> compared_classes(const StatsPlan& layout, const BoxBegins& begins) {
  std::map<StatsBox, std::vector<StatsBox>> copies;
  for_tied_boxes(layout, [&](StatsBox counted, StatsBox copy) { copies[counted].push_back(copy); });
  std::vector<ComparedClass> classes;
  for (const std::vector<StatsBox>& one : layout.classes) {
    ComparedClass& compared = classes.emplace_back();
    for (const StatsBox& box : one) {
      check_fit(compared.empty() || compared.back().box < box, [&] {
        return fmt::format("the boxes of class {} do not ascend", classes.size() - 1);
      });
      std::vector<StatsBox> of_box{box};
      if (const auto tied = copies.find(box); tied != copies.end()) {
        of_box.insert(of_box.end(), tied->second.begin(), tied->second.end());
        std::sort(of_box.begin() + 1, of_box.end());
      }
      ComparedBox& added = compared.emplace_back(ComparedBox{box, {}});
      for (const StatsBox& held : of_box) {
        if (const std::optional<std::size_t> begin = begin_of(begins, held)) {
          added.places.push_back({held, *begin});
        }
      }
      check_fit(!added.places.empty(), [&] {
        return fmt::format("box {} of tensor {} is compared, and nothing of it is here", box.second, box.first);
      });
    }
  }
  return classes;
}

}  // namespace gradsync::device
