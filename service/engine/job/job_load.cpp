// A plan on its lanes: loaded, connected, unloaded.

#include "base/assert.hpp"
#include "engine/job/job.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

namespace gradsync::engine {

namespace {

device::LaneCommand load_command(device::PlanId id, device::LanePlan layout) {
  return device::LoadPlan{id, std::move(layout)};
}

device::LaneCommand load_command(device::PlanId id, device::StatsPlan layout) {
  return device::LoadStats{id, std::move(layout)};
}

/// The layout for another lane than the first, which may be a site of its own.
device::LanePlan of_share(PreparedPlan& prepared, const device::LanePlan& first, std::size_t share) {
  device::LanePlan layout = first;
  if (!prepared.other_sites.empty()) {
    layout.nodes = std::move(prepared.other_sites[share - 1]);
  }
  return layout;
}

/// Tables lie on one lane.
device::StatsPlan of_share(PreparedPlan& /*prepared*/, const device::StatsPlan& first, std::size_t /*share*/) {
  return first;
}

}  // namespace

std::size_t EpochPlan::share_of(device::LaneId lane) const {
  const auto found = std::ranges::find(shares, lane, &LaneShare::lane);
  GRADSYNC_ASSERT(found != shares.end(), "a lane reports on plans that it was given");
  return static_cast<std::size_t>(found - shares.begin());
}

bool Job::owns_plan(device::PlanId plan) const { return active_ && active_->id == plan; }

bool Job::runs_on(device::LaneId lane) const {
  return active_ && std::any_of(active_->shares.begin(), active_->shares.end(), [&](const LaneShare& share) {
           return share.lane == lane;
         });
}

void Job::perform(const LoadPlan&) {
  Result<std::shared_ptr<StepRecord>> record = record_for(*prepared_);
  const Result<void> placed = record ? use_collectives(*prepared_) : record.error();
  fresh_communicators_ = true;  // until the epoch begins
  if (!placed) {
    fail_load(placed.error());
    return;
  }
  EpochPlan& loading = active_.emplace();
  loading.id = context_.next_plan++;
  context_.plans[loading.id] = this;
  loading.plan = counted(context_.planner.freed_elsewhere(std::move(prepared_->plan)), prepared_->memory_bytes);
  loading.shares = std::move(prepared_->shares);
  loading.join = std::move(prepared_->join);
  loading.loading = loading.shares.size();
  loading.constants = std::move(prepared_->constants);
  loading.record = std::move(*record);
  loading.comparison = std::move(prepared_->comparison);
  loading.communicators = std::move(prepared_->communicators);
  loading.linked = std::move(prepared_->linked);
  loading.needed = needed_communicators(*prepared_);
  const auto is_on = [&](std::int64_t rank, const LaneShare& share) {
    return !loading.comparison || loading.comparison->node_of_rank[static_cast<std::size_t>(rank)] == share.site;
  };
  for (const auto& [number, rank] : ranks_) {
    context_.buffers.use(rank.buffer);
    loading.buffers.push_back(rank.buffer);
    for (const LaneShare& share : loading.shares) {
      if (is_on(number, share)) {
        context_.buffers.map_on(rank.buffer, share.lane);
      }
    }
  }
  const auto load_on = [&](const LaneShare& share, auto layout) {
    layout.rank_buffers.assign(static_cast<std::size_t>(world_size()), 0);
    for (const auto& [number, rank] : ranks_) {
      layout.rank_buffers[static_cast<std::size_t>(number)] = is_on(number, share) ? rank.buffer : 0;
    }
    context_.lanes[share.lane].submit(load_command(loading.id, std::move(layout)));
  };
  std::visit(
      [&](auto& layout) {
        for (std::size_t other = 1; other < loading.shares.size(); ++other) {
          load_on(loading.shares[other], of_share(*prepared_, layout, other));
        }
        load_on(loading.shares.front(), std::move(layout));
      },
      prepared_->layout
  );
}

/// Communicators that are being built may wait for members which have gone on to another epoch. As long as they do,
/// they are in the way of those of the next plan, which another node would then wait for in turn. A lane that still
/// loads the plan builds nothing yet.
void Job::perform(const UnloadPlan&) {
  if (active_) {
    for (const LaneShare& share : active_->shares) {
      if (fresh_communicators_ && std::ranges::count(active_->offering, share.lane) != 0) {
        context_.lanes[share.lane].submit(device::Abort{active_->id, 0});
      }
      context_.lanes[share.lane].submit(device::UnloadPlan{active_->id});
    }
    for (const std::uint64_t buffer : active_->buffers) {
      context_.buffers.unuse(buffer);
    }
    context_.plans.erase(active_->id);
    active_.reset();
  }
}

void Job::on_loaded(device::LaneId lane, device::Loaded& report) {
  if (!owns_plan(report.plan)) {
    return;
  }
  if (report.communicators && !report.communicators->offers.empty()) {
    device::LoadedCommunicators& all = active_->offered ? *active_->offered : active_->offered.emplace();
    all.version = report.communicators->version;  // one library serves all lanes
    std::ranges::move(report.communicators->offers, std::back_inserter(all.offers));
    active_->offering.push_back(lane);
  }
  if (--active_->loading == 0) {
    perform(epochs_.on_lane_loaded());
  }
}

void Job::on_connected(device::PlanId plan) {
  if (owns_plan(plan) && epochs_.loads() && --active_->connecting == 0) {
    perform(peers_->tell(LocalsConnected{epochs_.epoch()}));
  }
}

void Job::on_load_failed(const device::Failed& report) {
  if (report.wire_lost) {
    fail_load(communicator_error(report));
    return;
  }
  fail_load(make_error(
      report.out_of_memory                         ? ErrorCode::InsufficientMemory
      : report.buffer != 0 && !report.hint.empty() ? ErrorCode::ImportRefused
      : report.lane_lost                           ? ErrorCode::StepFailed
      : report.unsupported                         ? ErrorCode::UnsupportedPlacement
                                                   : ErrorCode::InternalError,
      "the lane could not take the plan: " + report.message,
      !report.hint.empty()   ? report.hint
      : report.out_of_memory ? "give the daemon's cgroup more memory"
                             : "see the daemon's log"
  ));
}

/// Logged too, because the ranks that are told may have ended.
void Job::fail_load(const Error& error) {
  if (epochs_.loads()) {
    spdlog::warn(
        "epoch does not begin job={} epoch={} kind={} reason=\"{}\"",
        identity_.name,
        epochs_.epoch(),
        kind_of(error.code),
        error.message
    );
  }
  perform(epochs_.on_load_failed(error));
}

}  // namespace gradsync::engine
