// Performs what the epoch machine decides.

#include "base/text/text.hpp"
#include "engine/job/job.hpp"
#include "engine/metrics.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace gradsync::engine {

void Job::perform(const EpochActions& actions) {
  for (const EpochAction& action : actions) {
    std::visit([this](const auto& value) { perform(value); }, action);
  }
  if (planning_ != 0 && !epochs_.plans(planning_)) {
    withdraw(std::exchange(planning_, 0));
  }
  follow_pauses();
}

void Job::withdraw(std::uint64_t ticket) const {
  if (context_.tickets.erase(ticket) > 0) {
    context_.planner.withdraw(ticket);
  }
}

PlanRequest Job::plan_request(std::uint64_t ticket) const {
  context_.tickets.emplace(ticket, key());
  PlanRequest request;
  request.ticket = ticket;
  request.job = key();
  request.meshes = identity_.meshes;
  request.world_size = world_size();
  return request;
}

void Job::perform(const CheckDeclaration& action) {
  withdraw(std::exchange(ranks_[action.rank].check, action.ticket));
  PlanRequest request = plan_request(action.ticket);
  request.by_rank.own().push_back(ranks_[action.rank].declaration);
  request.pool = declared_;
  request.name_content = !peers_->alone();
  context_.planner.submit(std::move(request));
}

void Job::perform(const TellLocals& action) {
  LocalsChanged changed;
  for (const auto& [number, seat] : epochs_.roster()) {
    if (seat.taken) {
      changed.ranks.push_back(number);
    }
  }
  changed.words = words_of_ranks();
  changed.epoch = epochs_.promised_epoch();
  if (action.declared) {
    changed.declared.emplace();
    if (!peers_->alone()) {
      say_declared(changed);
    }
  }
  perform(peers_->tell(std::move(changed)));
}

void Job::perform(const TellLeft& action) { perform(peers_->tell(LocalsLeft{action.error})); }

void Job::perform(const TellReady& action) {
  if (!action.keeps_steps || !policies_.adopted(*active_->plan)) {
    std::vector<LastDone> last_done;
    for (const auto& [number, rank] : ranks_) {
      if (rank.last_done) {
        last_done.push_back({number, *rank.last_done});
      }
    }
    policies_.adopt(*active_->plan, last_done);
  }
  tell_ready();
}

void Job::tell_ready() {
  LocalsReady ready{epochs_.epoch(), active_->plan->digest, policies_.digest(), policies_.anew()};
  ready.plan = active_->plan;
  ready.comparison = active_->comparison;
  ready.communicators = active_->offered;
  perform(peers_->tell(std::move(ready)));
}

void Job::perform(const MakePlan& action) {
  planning_ = action.ticket;
  PlanRequest request = plan_request(action.ticket);
  if (gathered_.by_rank.empty()) {
    for (const auto& [number, rank] : ranks_) {  // every rank: each has declared
      request.by_rank.own().push_back(rank.declaration);
      request.lane_of_rank.push_back(context_.buffers.lane_of(rank.buffer));
    }
  } else {
    ask_for_node(request);
  }
  request.cpu_collectives = context_.options.cpu_collectives;
  request.sizes = context_.options.buckets;
  request.encode_report = context_.options.encode_report;
  request.encoded_bytes = context_.options.encoded_bytes;
  context_.planner.submit(std::move(request));
}

// A ticket that the machine does not know was overtaken, or is of another job.
void Job::on_plan(PlanOutcome& outcome) {
  if (const std::optional<std::int64_t> rank = epochs_.rank_checked(outcome.ticket)) {
    if (outcome.content) {
      ranks_[*rank].content = std::move(*outcome.content);
    }
    if (outcome.sharing) {
      share_tensors(*rank, std::move(*outcome.sharing));
    }
    perform(epochs_.on_checked(
        context_.now, *rank, outcome.plan ? std::nullopt : std::optional<Error>(outcome.plan.error())
    ));
  } else if (epochs_.plans(outcome.ticket)) {
    const PlanMade plan = made(outcome);
    if (outcome.plan) {
      prepared_ = std::move(*outcome.plan);
    }
    perform(epochs_.on_planned(context_.now, plan));
    prepared_.reset();
  }
}

PlanMade Job::made(const PlanOutcome& outcome) const {
  if (!outcome.plan) {
    return {{}, outcome.plan.error(), std::nullopt};
  }
  const plan::Plan& plan = *(*outcome.plan)->plan;
  if (std::optional<Error> error = memory_error((*outcome.plan)->memory_bytes)) {
    return {plan.digest, std::move(error), std::nullopt};
  }
  for (const auto& [number, rank] : ranks_) {
    if (std::optional<Error> error = arena_error(number, plan)) {
      return {plan.digest, std::move(error), number};
    }
  }
  return {plan.digest, std::nullopt, std::nullopt};
}

/// The memory of a plan counts as a declaration of the process of its lowest rank.
Holder Job::plan_holder() const { return {identity_.uid, ranks_.begin()->second.holder.pid}; }

std::optional<Error> Job::memory_error(std::uint64_t plan_bytes) const {
  const auto refused = context_.declared_bytes.refuse(plan_holder(), plan_bytes);
  if (!refused) {
    return std::nullopt;
  }
  return make_error(
      ErrorCode::LimitExceeded,
      fmt::format(
          "declarations of {} hold {}, the plan of job '{}' needs {} more; at most {}",
          refused->whose,
          human_bytes(refused->held),
          identity_.name,
          human_bytes(plan_bytes),
          human_bytes(refused->most)
      ),
      "end jobs that are not needed, or declare fewer tensors"
  );
}

/// The same plan, which counts until its last owner lets it go: that of the epoch before answers late calls.
std::shared_ptr<const plan::Plan> Job::counted(std::shared_ptr<const plan::Plan> plan, std::uint64_t bytes) const {
  const auto share = std::make_shared<FairBudget::Share>(context_.declared_bytes, plan_holder(), bytes);
  const plan::Plan* const bare = plan.get();
  return {bare, [plan = std::move(plan), share](const plan::Plan*) {}};
}

LocalRanks Job::attached_ranks() const {
  std::vector<std::int64_t> ranks;
  for (const auto& [number, rank] : ranks_) {
    ranks.push_back(number);
  }
  return LocalRanks::of(world_size(), std::move(ranks), !peers_->alone());
}

/// A process may have taken the seat of another rank. Survivors whose calls wait already keep them.
void Job::reseat(LocalRanks ranks) {
  if (ranks == locals_ && attempt_.calls.size() == ranks.size()) {
    return;
  }
  std::vector<StepCall> calls(ranks.size());
  for (std::size_t seat = 0; seat < calls.size(); ++seat) {
    const std::optional<std::size_t> before = locals_.seat_of(ranks.rank_of(seat));
    if (before && *before < attempt_.calls.size()) {
      calls[seat] = std::move(attempt_.calls[*before]);
    }
  }
  attempt_.calls = std::move(calls);
  if (machine_) {
    machine_->reseat(ranks);
  }
  locals_ = std::move(ranks);
}

void Job::perform(const CommitPlan& action) {
  record_ = active_->record;
  recorder_.use_plan(*active_->plan, !peers_->alone());
  reseat(attached_ranks());
  if (!action.keeps_steps) {
    machine_.emplace(active_->plan, epochs_.epoch(), locals_);
  }
  publish_epoch(fmt::format("epoch {} of job '{}' begins with {} ranks", epochs_.epoch(), identity_.name, world_size())
  );
  spdlog::info(
      "epoch begins job={} epoch={} ranks={} tensors={} buckets={} plan={}",
      identity_.name,
      epochs_.epoch(),
      world_size(),
      active_->plan->tensors.size(),
      active_->plan->buckets.size(),
      active_->plan->digest
  );
}

void Job::perform(const OpenSteps&) { run(machine_->open(active_->shares)); }

/// What other nodes said of the end may have failed it already.
void Job::perform(const FailAttempt& action) {
  if (epochs_.ending()) {
    run(machine_->fail(action.error));
  }
}

void Job::perform(const FailStepCalls& action) {
  if (!machine_->any_waiting()) {
    return;
  }
  for (std::size_t seat = 0; seat < locals_.size(); ++seat) {
    if (machine_->waiting(locals_.rank_of(seat))) {
      epochs_.on_told(locals_.rank_of(seat), action.error);
    }
  }
  run(machine_->fail(action.error));
}

// Survivors keep their declarations and may already work for the new epoch, if the plan stays the same.
void Job::perform(const FormEpoch& action) {
  std::shared_ptr<const plan::Plan> plan = machine_->plan_pointer();
  machine_.emplace(std::move(plan), epochs_.epoch(), locals_);
  publish_epoch(fmt::format("epoch {} of job '{}' forms: {}", epochs_.epoch(), identity_.name, action.reason));
  spdlog::info("epoch ended job={} epoch={} reason=\"{}\"", identity_.name, epochs_.epoch() - 1, action.reason);
}

void Job::perform(const ReportLoss& action) {
  context_.metrics.ranks_lost.Increment();
  spdlog::warn(
      "rank lost job={} rank={} epoch={} reason=\"{}\"",
      identity_.name,
      action.rank,
      epochs_.epoch(),
      action.error.message
  );
  publish_alert("rank_lost", action.error.message);
  if (machine_ && !machine_->begun()) {  // else the attempt fails, and its dump has more
    keep_dump(action.error);
  }
}

void Job::perform(const VacateSeat& action) {
  Rank left = ranks_.take(action.rank);
  context_.vacated.push_back(left.holder.session);
  withdraw(left.check);
  context_.buffers.release_all(left.holder.session);
  const std::optional<std::size_t> seat = locals_.seat_of(action.rank);
  if (seat && *seat < attempt_.calls.size()) {
    if (Reply<RankReport> waiting = std::exchange(attempt_.calls[*seat], StepCall{}).reply) {
      attempt_.departed.push_back({*seat, std::move(waiting)});
    }
  }
  if (left.declare_reply) {
    ranks_[action.rank].declare_reply = std::move(left.declare_reply);  // an answer follows
  }
  tell_pauses();
}

bool Job::owns_buffer(std::uint64_t buffer) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
    return rank.second.buffer == buffer && buffer != 0;
  });
}

}  // namespace gradsync::engine
