// How an epoch forms and ends.

#include "engine/job.hpp"
#include "engine/largest_report.hpp"
#include "engine/metrics.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace gradsync::engine {

namespace {

device::LaneCommand load_command(device::PlanId id, device::LanePlan layout) {
  return device::LoadPlan{id, std::move(layout)};
}

device::LaneCommand load_command(device::PlanId id, device::StatsPlan layout) {
  return device::LoadStats{id, std::move(layout)};
}

}  // namespace

void Job::cancel_forming() {
  plan_ticket_ = 0;
  if (loading_) {
    unload(*loading_);
    loading_.reset();
  }
}

void Job::stop_forming(const Error& error) {
  cancel_forming();
  refuse_fresh(error);
}

void Job::try_form() {
  if (plan_ticket_ != 0 || loading_ || transition_ || halted_) {
    return;
  }
  const bool complete =
      std::none_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) { return lacks_declaration(rank); });
  if (!complete || all_committed()) {
    return;
  }
  PlanRequest request;
  request.ticket = plan_ticket_ = context_.next_ticket++;
  for (const Rank& rank : ranks_) {
    request.by_rank.push_back(rank.declaration);
  }
  request.meshes = meshes_;
  request.world_size = world_size();
  request.sizes = context_.options.buckets;
  request.encode_report = context_.options.encode_report;
  request.encoded_bytes = context_.options.encoded_bytes;
  context_.planner.submit(std::move(request));
}

bool Job::all_committed() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.committed; });
}

void Job::on_plan(PlanOutcome& outcome) {
  for (Rank& rank : ranks_) {
    if (rank.validate_ticket == outcome.ticket) {
      rank.validate_ticket = 0;
      if (outcome.plan) {
        rank.valid = true;
        try_form();
      } else {
        drop_declaration(rank);
        answer_declare(rank, outcome.plan.error());
      }
      follow_pauses();
      return;
    }
  }
  if (outcome.ticket != plan_ticket_) {
    return;  // overtaken by a change of membership
  }
  plan_ticket_ = 0;
  if (!outcome.plan) {
    refuse_fresh(outcome.plan.error());
    return;
  }
  PreparedPlan& prepared = **outcome.plan;
  for (std::int64_t rank = 0; rank < world_size(); ++rank) {
    if (const std::optional<Error> error = arena_error(rank, *prepared.plan)) {
      if (ranks_[index(rank)].committed) {  // a survivor that released what its declaration names
        drop_declaration(ranks_[index(rank)]);
        end_epoch(*error);
      }
      refuse_fresh(*error);
      return;
    }
  }
  if (changes_plan(*prepared.plan)) {
    redeclare_ = true;
    end_epoch(make_error(
        ErrorCode::StaleEpoch,
        fmt::format("what the new process declared makes another plan of job '{}'", name_),
        "every rank has to call gradients.declare again"
    ));
    return;
  }
  Result<std::shared_ptr<StepRecord>> record = record_for(prepared);
  if (!record) {
    refuse_fresh(record.error());
    return;
  }
  load(std::move(prepared), std::move(*record));
}

// Survivors may already work for the coming epoch, with the plan they know: they must not find themselves in another.
bool Job::changes_plan(const plan::Plan& plan) const {
  return machine_ && !redeclare_ && machine_->plan().digest != plan.digest &&
         std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.committed; });
}

void Job::load(PreparedPlan prepared, std::shared_ptr<StepRecord> record) {
  EpochPlan& loading = loading_.emplace();
  loading.id = context_.next_plan++;
  loading.plan = context_.planner.freed_elsewhere(std::move(prepared.plan));
  loading.constants = std::move(prepared.constants);
  loading.record = std::move(record);
  for (const Rank& rank : ranks_) {
    context_.buffers.use(rank.buffer);
    loading.buffers.push_back(rank.buffer);
  }
  std::visit(
      [this, &loading](auto& layout) {
        layout.rank_buffers = loading.buffers;
        context_.lane.submit(load_command(loading.id, std::move(layout)));
      },
      prepared.layout
  );
}

void Job::on_loaded(device::PlanId plan) {
  if (loading_ && loading_->id == plan) {
    commit_epoch();
  }
}

void Job::on_load_failed(const device::Failed& report) {
  if (!loading_) {
    return;
  }
  const Error error = make_error(
      report.out_of_memory ? ErrorCode::InsufficientMemory : ErrorCode::InternalError,
      "the lane could not take the plan: " + report.message,
      report.out_of_memory ? "give the daemon's cgroup more memory" : "see the daemon's log"
  );
  cancel_forming();
  refuse_fresh(error);
}

void Job::commit_epoch() {
  const bool keeps_machine = machine_ && machine_->plan().digest == loading_->plan->digest && !redeclare_;
  active_ = std::exchange(loading_, std::nullopt);
  record_ = active_->record;
  history_.make_room(largest_clean_report(*active_->plan, active_->constants));
  if (!keeps_machine) {
    machine_.emplace(active_->plan, epoch_);
    adopt_policies();
  }
  redeclare_ = false;
  steps_in_epoch_ = 0;
  publish_epoch(fmt::format("epoch {} of job '{}' begins with {} ranks", epoch_, name_, ranks_.size()));
  spdlog::info(
      "epoch begins job={} epoch={} ranks={} tensors={} buckets={} plan={}",
      name_,
      epoch_,
      ranks_.size(),
      active_->plan->tensors.size(),
      active_->plan->buckets.size(),
      active_->plan->digest
  );
  for (std::size_t number = 0; number < ranks_.size(); ++number) {
    Rank& rank = ranks_[number];
    rank.fresh = false;
    rank.committed = true;
    if (rank.declare_reply) {
      answer_declare(rank, declare_result(static_cast<std::int64_t>(number)));
    }
  }
  run(machine_->open());
}

void Job::unload(EpochPlan& plan) {
  context_.lane.submit(device::UnloadPlan{plan.id});
  for (const std::uint64_t buffer : plan.buffers) {
    context_.buffers.unuse(buffer);
  }
  plan.buffers.clear();
}

// The attempt in flight fails first; the number rises in `apply_transition`, when the lane is quiet.
void Job::end_epoch(Error error) {
  if (transition_) {
    return;
  }
  error.job = name_;
  error.epoch = epoch_ + 1;
  error.attempt = 0;
  transition_ = std::move(error);
  run(machine_->fail(*transition_));
}

void Job::apply_transition() {
  ended_ = std::exchange(transition_, std::nullopt);
  ++epoch_;
  if (active_) {
    unload(*active_);
    active_.reset();
  }
  // Survivors keep their declarations and may already work for the new epoch, if the plan stays the same.
  std::shared_ptr<const plan::Plan> plan = machine_->plan_pointer();
  machine_.emplace(std::move(plan), epoch_);
  // Weights that were compared before steps were taken are no longer those of the ranks that took them.
  redeclare_ = redeclare_ || (steps_in_epoch_ > 0 && compares_weights());
  publish_epoch(fmt::format("epoch {} of job '{}' forms: {}", epoch_, name_, ended_->message));
  spdlog::info("epoch ended job={} epoch={} reason=\"{}\"", name_, epoch_ - 1, ended_->message);
  try_form();
}

bool Job::compares_weights() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.declaration && !rank.declaration->weight_fingerprints.empty();
  });
}

bool Job::owns_plan(device::PlanId plan) const {
  return (active_ && active_->id == plan) || (loading_ && loading_->id == plan);
}

bool Job::owns_buffer(std::uint64_t buffer) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
    return rank.buffer == buffer && buffer != 0;
  });
}

}  // namespace gradsync::engine
