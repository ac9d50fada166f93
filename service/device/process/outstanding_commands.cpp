#include "device/process/outstanding_commands.hpp"

#include "device/about.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::device {

namespace {

template <typename Report, typename... Reports>
constexpr std::size_t index_in(std::type_identity<std::variant<Reports...>> /*all*/) {
  std::size_t index = 0;
  static_cast<void>(((!std::is_same_v<Report, Reports> && (++index, true)) && ...));
  return index;
}

template <typename Report>
constexpr std::size_t kIndexOf = index_in<Report>(std::type_identity<LaneReport>());

/// The alternative of LaneReport by which a command is answered; nothing: by none.
std::optional<std::size_t> report_of(const MapBuffer& /*command*/) { return kIndexOf<Mapped>; }

std::optional<std::size_t> report_of(const ProbeMemory& /*command*/) { return kIndexOf<Probed>; }

std::optional<std::size_t> report_of(const UnmapBuffer& /*command*/) { return kIndexOf<Unmapped>; }

std::optional<std::size_t> report_of(const LoadPlan& /*command*/) { return kIndexOf<Loaded>; }

std::optional<std::size_t> report_of(const LoadStats& /*command*/) { return kIndexOf<Loaded>; }

std::optional<std::size_t> report_of(const ConnectNodes& /*command*/) { return kIndexOf<Connected>; }

std::optional<std::size_t> report_of(const UnloadPlan& /*command*/) { return kIndexOf<Unloaded>; }

std::optional<std::size_t> report_of(const ReduceBucket& /*command*/) { return kIndexOf<Reduced>; }

std::optional<std::size_t> report_of(const FinishStep& /*command*/) { return kIndexOf<Finished>; }

std::optional<std::size_t> report_of(const MeasureBuckets& /*command*/) { return kIndexOf<Measured>; }

std::optional<std::size_t> report_of(const ScaleGradients& /*command*/) { return kIndexOf<Scaled>; }

std::optional<std::size_t> report_of(const ReadRows& /*command*/) { return kIndexOf<RowsRead>; }

std::optional<std::size_t> report_of(const Abort& /*command*/) { return kIndexOf<Aborted>; }

std::optional<std::size_t> report_of(const SetWidth& /*command*/) { return std::nullopt; }

/// Whether the report answers a command that works on an attempt, or ends one: those are answered in their order.
bool is_of_attempt(std::size_t report) {
  return report == kIndexOf<Reduced> || report == kIndexOf<Finished> || report == kIndexOf<Measured> ||
         report == kIndexOf<Scaled> || report == kIndexOf<RowsRead> || report == kIndexOf<Aborted>;
}

/// None for what works on an attempt: an Abort ends that. `communicators`: its plan has some.
std::optional<OutstandingCommands::Deadline> deadline_of(
    const LaneCommand& command, bool communicators, TimePoint now, const OutstandingCommands::Patience& patience
) {
  const auto within = [now](Milliseconds most, const char* what) {
    return OutstandingCommands::Deadline{now + most, what, most};
  };
  if (std::holds_alternative<Abort>(command)) {
    return within(communicators ? patience.abort_of_communicators : patience.abort, "an abort");
  }
  if (const auto* map = std::get_if<MapBuffer>(&command)) {
    return within(map->exported ? patience.import : patience.other, "the mapping of a buffer");
  }
  if (std::holds_alternative<ProbeMemory>(command)) {
    return within(patience.import, "the probe of another process's memory");
  }
  if (std::holds_alternative<UnmapBuffer>(command)) {
    return within(patience.other, "the release of a buffer");
  }
  if (std::holds_alternative<LoadPlan>(command) || std::holds_alternative<LoadStats>(command)) {
    return within(patience.other, "the loading of a plan");
  }
  if (const auto* connect = std::get_if<ConnectNodes>(&command)) {
    return connect->communicators.empty() ? within(patience.other, "the connections of a plan")
                                          : within(patience.connect, "the communicators of a plan");
  }
  if (std::holds_alternative<UnloadPlan>(command)) {
    return within(patience.other, "the unloading of a plan");
  }
  return std::nullopt;
}

bool is_below(std::int64_t rank, std::size_t ranks) { return rank >= 0 && static_cast<std::size_t>(rank) < ranks; }

}  // namespace

void OutstandingCommands::add(const LaneCommand& command, TimePoint now, const Patience& patience) {
  const std::optional<std::size_t> report = std::visit([](const auto& given) { return report_of(given); }, command);
  if (!report) {
    return;
  }
  Waiting& waiting = commands_.emplace_back();
  waiting.report = *report;
  waiting.failure = about(command);
  const auto plan = plans_.find(waiting.failure.plan);
  waiting.deadline = deadline_of(command, plan != plans_.end() && plan->second.communicators, now, patience);
  if (const auto* load = std::get_if<LoadPlan>(&command)) {
    note_plan(*load);
  } else if (const auto* load_stats = std::get_if<LoadStats>(&command)) {
    note_plan(*load_stats);
  } else if (const auto* connect = std::get_if<ConnectNodes>(&command); connect != nullptr && plan != plans_.end()) {
    plan->second.communicators = !connect->communicators.empty();
  } else if (const auto* unload = std::get_if<UnloadPlan>(&command)) {
    plans_.erase(unload->plan);
  } else if (const auto* probe = std::get_if<ProbeMemory>(&command)) {
    waiting.probed_bytes = probe->size_bytes;
  } else if (const auto* reduce = std::get_if<ReduceBucket>(&command)) {
    waiting.bucket = reduce->bucket;
  } else if (const auto* finish = std::get_if<FinishStep>(&command)) {
    waiting.size = size_of(finish->plan);
    waiting.raw = finish->raw;
  } else if (const auto* measure = std::get_if<MeasureBuckets>(&command)) {
    waiting.size = size_of(measure->plan);
    waiting.size->groups = waiting.size->layers = 0;
  } else if (const auto* read = std::get_if<ReadRows>(&command)) {
    note_rows(*read, waiting);
  }
}

void OutstandingCommands::note_plan(const LoadPlan& load) {
  const LanePlan& layout = load.layout;
  PlanSize size{layout.tensors.size(), layout.rank_buffers.size(), layout.clip_groups, layout.layers, 0, 0};
  std::size_t compared = 0;
  for (const std::vector<StatsBox>& one : layout.nodes.classes) {
    compared += one.size();
  }
  size.rows = compared * layout.rank_buffers.size();
  note_plan(load.plan, size, layout.nodes.classes);
}

void OutstandingCommands::note_plan(const LoadStats& load) {
  const StatsPlan& layout = load.layout;
  PlanSize size{layout.tensors.size(), layout.rank_buffers.size(), layout.clip_groups, layout.layers, 0, 0};
  for (const StatsTensor& tensor : layout.tensors) {
    size.rows += tensor.holders.size();
  }
  note_plan(load.plan, size, layout.classes);
}

void OutstandingCommands::note_plan(PlanId id, PlanSize size, const std::vector<std::vector<StatsBox>>& classes) {
  Plan& plan = plans_[id] = {size, {}};
  plan.size.classes = classes.size();
  for (const std::vector<StatsBox>& one : classes) {
    plan.boxes.push_back(one.size());
  }
}

void OutstandingCommands::note_rows(const ReadRows& read, Waiting& waiting) const {
  const auto found = plans_.find(read.plan);
  waiting.size = size_of(read.plan);
  waiting.rows = !read.boxes.empty();
  for (const std::uint32_t number : read.classes) {
    const bool exists = found != plans_.end() && number < found->second.boxes.size();
    waiting.hashes += exists ? found->second.boxes[number] : 0;
  }
}

OutstandingCommands::PlanSize OutstandingCommands::size_of(PlanId plan) const {
  const auto found = plans_.find(plan);
  return found == plans_.end() ? PlanSize{} : found->second.size;
}

bool OutstandingCommands::answered_by(const LaneReport& report) {
  const Failed ids = about(report);
  const bool failed = std::holds_alternative<Failed>(report);
  const auto found = std::find_if(commands_.begin(), commands_.end(), [&](const Waiting& waiting) {
    const Failed& its = waiting.failure;
    const bool same_kind =
        is_of_attempt(report.index()) ? is_of_attempt(waiting.report) : waiting.report == report.index();
    return (failed || same_kind) && its.plan == ids.plan && its.tag == ids.tag && its.buffer == ids.buffer;
  });
  if (found == commands_.end() || !(failed || found->report == report.index()) || !names_what_exists(report, *found)) {
    return false;
  }
  commands_.erase(found);
  return true;
}

bool OutstandingCommands::names_what_exists(const LaneReport& report, const Waiting& waiting) {
  if (const auto* reduced = std::get_if<Reduced>(&report)) {
    return reduced->bucket == waiting.bucket;
  }
  if (const auto* finished = std::get_if<Finished>(&report)) {
    return names_what_exists(*finished, waiting);
  }
  if (const auto* measured = std::get_if<Measured>(&report)) {
    const auto exists = [&](const TensorCell& cell) { return cell.tensor < waiting.size->tensors; };
    const auto ascends = [](const TensorCell& a, const TensorCell& b) { return a.tensor >= b.tensor; };
    return std::ranges::all_of(measured->cells, exists) &&
           std::ranges::adjacent_find(measured->cells, ascends) == measured->cells.end() &&
           names_what_exists(measured->findings, *waiting.size);
  }
  if (const auto* read = std::get_if<RowsRead>(&report)) {
    return names_what_exists(*read, waiting);
  }
  if (const auto* probed = std::get_if<Probed>(&report)) {
    return probed->probe.read.size() == waiting.probed_bytes;
  }
  if (const auto* failed = std::get_if<Failed>(&report); failed != nullptr && failed->row) {
    return waiting.size && failed->row->tensor < waiting.size->tensors &&
           is_below(failed->row->rank, waiting.size->ranks);
  }
  return true;
}

/// A raw finish says everything but what is decided, any other that alone.
bool OutstandingCommands::names_what_exists(const Finished& finished, const Waiting& waiting) {
  PlanSize size = *waiting.size;
  if ((finished.raw != nullptr) != waiting.raw) {
    return false;
  }
  if (waiting.raw) {
    const NodeCells& cells = finished.raw->cells;
    if (cells.groups.size() != (size.groups == 1 ? 0 : size.groups) || cells.layers.size() != size.layers ||
        finished.raw->class_hashes.size() != size.classes) {
      return false;
    }
    size.groups = size.layers = 0;
  }
  return names_what_exists(finished.math, size);
}

/// Which boxes the rows are of is checked by those that judge them: they come from other nodes, too.
bool OutstandingCommands::names_what_exists(const RowsRead& read, const Waiting& waiting) {
  return read.box_hashes.size() == waiting.hashes && read.rows.size() <= (waiting.rows ? waiting.size->rows : 0) &&
         std::ranges::all_of(read.rows, [&](const HeldRow& row) {
           return row.tensor < waiting.size->tensors && is_below(row.rank, waiting.size->ranks);
         });
}

bool OutstandingCommands::names_what_exists(const StepMath& math, const PlanSize& size) {
  const auto is_tensor = [&](std::uint32_t tensor) { return tensor < size.tensors; };
  const auto are_ranks = [&](const std::vector<std::int64_t>& ranks) {
    return std::ranges::all_of(ranks, [&](std::int64_t rank) { return is_below(rank, size.ranks); });
  };
  const auto of_ranks = [&](const auto& finding) { return is_tensor(finding.tensor) && are_ranks(finding.ranks); };
  return math.groups.size() == size.groups && math.raw_group_norms.size() == size.groups &&
         math.layer_norms.size() == size.layers && math.absent.size() <= size.tensors &&
         std::ranges::all_of(math.absent, is_tensor) && std::ranges::all_of(math.divergence, of_ranks) &&
         std::ranges::all_of(
             math.divergence,
             [&](const DivergenceFinding& finding) {
               return are_ranks(finding.majority) && are_ranks(finding.suspects);
             }
         ) &&
         std::ranges::all_of(math.missing, of_ranks) &&
         std::ranges::all_of(math.nonfinite, [&](const NonfiniteFinding& finding) {
           return is_tensor(finding.tensor) && std::ranges::all_of(finding.inputs, [&](const auto& input) {
                    return is_below(input.first, size.ranks);
                  });
         });
}

Failed OutstandingCommands::take_oldest() {
  Failed failure = std::move(commands_.front().failure);
  commands_.pop_front();
  return failure;
}

std::optional<OutstandingCommands::Deadline> OutstandingCommands::next_deadline() const {
  std::optional<Deadline> earliest;
  for (const Waiting& waiting : commands_) {
    if (waiting.deadline && (!earliest || waiting.deadline->when < earliest->when)) {
      earliest = waiting.deadline;
    }
  }
  return earliest;
}

}  // namespace gradsync::device
