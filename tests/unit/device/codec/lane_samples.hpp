#pragma once
// One command and one report of every alternative, each field with a value of its own, and a comparison that looks at
// every field of two values, whatever the codec knows of them.

#include "device/lane.hpp"

#include <boost/pfr.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::device {

template <typename T>
bool same(const T& a, const T& b);

inline bool same(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

/// Open descriptors of one file.
inline bool same(const UniqueFd& a, const UniqueFd& b) {
  struct stat first {};

  struct stat second {};

  if (!a.valid() || !b.valid()) {
    return a.valid() == b.valid();
  }
  return ::fstat(a.get(), &first) == 0 && ::fstat(b.get(), &second) == 0 && first.st_ino == second.st_ino &&
         first.st_dev == second.st_dev;
}

template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i) {
    equal = same(a[i], b[i]);
  }
  return equal;
}

template <typename T>
bool same(const SharedList<T>& a, const SharedList<T>& b) {
  return same(std::vector<T>(a.begin(), a.end()), std::vector<T>(b.begin(), b.end()));
}

template <typename T, std::size_t Size>
bool same(const std::array<T, Size>& a, const std::array<T, Size>& b) {
  return a == b;
}

template <typename T>
bool same(const std::optional<T>& a, const std::optional<T>& b) {
  return a.has_value() == b.has_value() && (!a || same(*a, *b));
}

template <typename T>
bool same(const std::shared_ptr<const T>& a, const std::shared_ptr<const T>& b) {
  return (a == nullptr) == (b == nullptr) && (!a || same(*a, *b));
}

template <typename A, typename B>
bool same(const std::pair<A, B>& a, const std::pair<A, B>& b) {
  return same(a.first, b.first) && same(a.second, b.second);
}

template <typename... Ts>
bool same(const std::variant<Ts...>& a, const std::variant<Ts...>& b) {
  return a.index() == b.index() &&
         std::visit(
             [&](const auto& value) { return same(value, std::get<std::remove_cvref_t<decltype(value)>>(b)); }, a
         );
}

template <typename T>
bool same(const T& a, const T& b) {
  if constexpr (std::is_aggregate_v<T>) {
    bool equal = true;
    const auto fields_of_b = boost::pfr::structure_tie(b);
    boost::pfr::for_each_field(a, [&](const auto& field, auto index) {
      equal = equal && same(field, std::get<index.value>(fields_of_b));
    });
    return equal;
  } else {
    return a == b;
  }
}

/// A descriptor of a file that no other sample has.
inline UniqueFd sample_fd() { return UniqueFd(::memfd_create("lane sample", MFD_CLOEXEC)); }

inline plan::BucketTransfer sample_transfer() {
  plan::BucketTransfer transfer;
  transfer.bucket = 51;
  transfer.result = plan::DType::Float16;
  transfer.partial = plan::DType::BFloat16;
  transfer.sum = plan::DType::Float64;
  transfer.streams = {{{52, 53}, {54}, 55}, {}};
  transfer.blocks = {{56, 57, 58, 59, 60}};
  transfer.pieces = {{61, 62, 63, 64, 65}, {66, 67, 68, 69, 70}};
  return transfer;
}

inline NcclUniqueId sample_id(char first) {
  NcclUniqueId id;
  for (std::size_t at = 0; at < id.bytes.size(); ++at) {
    id.bytes[at] = static_cast<char>(first + static_cast<char>(at));
  }
  return id;
}

inline LanePlan sample_plan() {
  LanePlan plan;
  plan.world_size = 3;
  plan.norm_type = 2.5;
  plan.tensors = {{1, 2, -1, 3, 4, {5, 6}}, {7, 8, 9, 10, 11, {}}};
  plan.parts = {{12, 13, 14, 15, 16, {{17, 18}, {19, 20}}}, {21, 22, 23, 24, 25, {}}};
  plan.sums = {{{{{26, 27}, {28, 29}}, {{30, 31}}}, {}}, {}, {{{}, {{32, 33}}}}};
  plan.buckets = {{plan::DType::BFloat16, {34, 35}, 0.25}, {plan::DType::Float64, {}, -0.0}};
  plan.arenas = {{{36, kNotHeld}, {37}}, {}};
  plan.arena_of_rank = {38, 39, 40};
  plan.clip_groups = 41;
  plan.layers = 42;
  plan.rank_buffers = {43, 44, 45};
  plan.nodes.node = 46;
  plan.nodes.node_of_rank = {47, 48, 49};
  plan.nodes.transfers = std::vector<plan::BucketTransfer>{sample_transfer(), {}};
  plan.nodes.staging_bytes = 50;
  plan.nodes.classes = {{{51, 52}, {53, 54}}, {}};
  plan.nodes.communicators = {71, true, {{{{"dp_replicate", std::string("\0\xff", 2)}, {72, -1}, 73}, {74, 75}}, {}}};
  return plan;
}

inline StatsPlan sample_stats() {
  StatsPlan plan;
  plan.world_size = 2;
  plan.norm_type = std::numeric_limits<double>::infinity();
  plan.clip_groups = 3;
  plan.layers = 4;
  plan.tensors = {{5, -1, false, {{6, 7, 8, 9}, {10, 11, 12, 13}}}, {14, 15, true, {}}};
  plan.ties = {{16, 17, {18, -1}}, {19, 20, {}}};
  plan.rank_buffers = {21, 22};
  plan.elsewhere = {{23, 24}, {25, 26}};
  plan.classes = {{{27, 28}, {29, 30}}, {}};
  return plan;
}

inline std::vector<plan::ClipRule> sample_rules() {
  plan::ClipRule rule;
  rule.max_norm = 1.5;
  rule.mode = plan::ClipMode::Torch;
  rule.zero_rule = plan::ZeroRule::Zero;
  rule.norm_dtype = plan::DType::Float16;
  rule.bound = {plan::ClipBound::Kind::ZScore, 2.5, 3.5, 4.5, 5.5};
  rule.nonfinite = plan::NonfiniteAction::Raise;
  rule.spike = plan::SpikeAction::Skip;
  rule.spike_above = 6.5;
  return {rule, plan::ClipRule{}};
}

inline std::vector<plan::ClipOutcome> sample_outcomes() {
  plan::ClipOutcome outcome;
  outcome.norm = std::numeric_limits<double>::quiet_NaN();
  outcome.threshold = 1.25;
  outcome.coefficient = 0.125;
  outcome.multiplier = 0.0625;
  outcome.multiply = true;
  outcome.clipped = true;
  outcome.reason = std::string("norm \0 above", 12);
  outcome.action = plan::StepAction::Skip;
  outcome.spike = true;
  outcome.decides = true;
  return {outcome, plan::ClipOutcome{}};
}

inline StepMath sample_math() {
  StepMath math;
  math.norm = -std::numeric_limits<double>::infinity();
  math.groups = sample_outcomes();
  math.raw_group_norms = {1.5, 2.5};
  math.layer_norms = {3.5};
  math.nonfinite = {{1, 2, {{3, 4}, {5, 6}}}, {7, 8, {}}};
  math.divergence = {{9, {10, 11}, {11}, {10}}};
  math.missing = {{12, {13}}, {14, {}}};
  math.absent = {15, 16, 17};
  math.nonfinite_total = 18;
  math.counted_elements = 19;
  math.norm_s = 0.001;
  math.clip_s = 0.002;
  return math;
}

inline RawStep sample_raw() {
  RawStep raw;
  raw.cells.whole = {{1.5, 1e-20}, 2, 3.5, 4, 5};
  raw.cells.groups = {{{6.5, 0}, 1, -1, 7, 8}, {}};
  raw.cells.layers = {{{9.5, 0}, 0.5, 10.5, 11, 12}};
  raw.cells.counted_elements = 13;
  raw.class_hashes = {14, ~std::uint64_t{0}};
  return raw;
}

inline ConnectNodes connect_sample() {
  ConnectNodes connect{73, {}};
  connect.communicators = {{"dp:0", 75, sample_id('a')}, {"", 76, std::nullopt}};
  connect.connections.push_back({74, sample_fd(), sample_fd()});
  return connect;
}

/// The same each time, but for the descriptors of `MapBuffer`, the second `UnmapBuffer` and `ConnectNodes`.
inline std::vector<LaneCommand> sample_commands() {
  FinishStep finish;
  finish.plan = 1;
  finish.tag = 2;
  finish.scale = 1024;
  finish.rules = sample_rules();
  finish.apply = false;
  finish.stamp = ~std::uint64_t{0};
  finish.raw = true;
  finish.sums = HashSums::Out;
  std::vector<LaneCommand> commands;
  commands.emplace_back(MapBuffer{1, sample_fd(), 2});
  commands.emplace_back(MapBuffer{22, UniqueFd(), 23, ExportedMemory{24, std::string(64, '\x19'), 26, 27}});
  commands.emplace_back(UnmapBuffer{3});
  commands.emplace_back(UnmapBuffer{4, sample_fd(), 5});
  commands.emplace_back(LoadPlan{6, sample_plan()});
  commands.emplace_back(LoadStats{7, sample_stats()});
  commands.emplace_back(UnloadPlan{8});
  commands.emplace_back(ReduceBucket{9, 10, 11, {{12, 13}, {14, -1}}, true, false});
  commands.emplace_back(ReduceBucket{15, 16, 17, {}, false, true});
  commands.emplace_back(std::move(finish));
  commands.emplace_back(MeasureBuckets{28, 29, {30, 31}});
  commands.emplace_back(ScaleGradients{18, 19, sample_outcomes(), {32}, {71, 72}});
  commands.emplace_back(Abort{20, 21});
  commands.emplace_back(SetWidth{true});
  commands.emplace_back(ProbeMemory{33, 34, ExportedMemory{35, std::string(64, '\x24'), 37, 38}});
  commands.emplace_back(ReadRows{39, 40, {41, 42}, {{43, 44}, {45, 46}}});
  commands.emplace_back(connect_sample());
  return commands;
}

inline std::vector<LaneReport> sample_reports() {
  Finished finished;
  finished.plan = 8;
  finished.tag = 9;
  finished.math = sample_math();
  Finished raw = finished;
  raw.raw = std::make_shared<const RawStep>(sample_raw());
  return {
      Mapped{1},
      Unmapped{2},
      Loaded{3},
      Loaded{45, LoadedCommunicators{22'809, {{"dp:0", 46, 47, 48, std::nullopt}, {"", 49, 50, {}, sample_id('b')}}}},
      Unloaded{4},
      Reduced{5, 6, 7, 0.5},
      finished,
      raw,
      Measured{22, 23, {{24, {{1.5, 1e-20}, 2, 3.5, 25, 26}, 27}}, sample_math()},
      Scaled{10, 11, 0.25},
      Aborted{12, 13},
      Failed{14, 15, 16, true, false, "no \xff memory", FailedRow{17, 18, "power_sum"}},
      Failed{19, 20, 21, false, true, "", std::nullopt, "a hint", true},
      Failed{41, 42, 0, false, false, "reset by peer", std::nullopt, "", false, true, 43},
      Failed{53, 0, 0, false, false, "too old", std::nullopt, "a hint", false, false, std::nullopt, true},
      Connected{44},
      Probed{28, {29, std::string("\0\xff", 2), 0.5, 0.25, 0.125}},
      RowsRead{30, 31, {32, 33}, {{34, 35, 36, {37, 1.5, -0.0, 2, 3.5, 38, 39, 40}}, {}}},
  };
}

}  // namespace gradsync::device
