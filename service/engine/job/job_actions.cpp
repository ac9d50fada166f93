// Performs the actions of the step machine.

#include "engine/job/job.hpp"
#include "engine/metrics.hpp"
#include "engine/peers/sums/node_sums.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace gradsync::engine {

namespace {

constexpr std::int64_t kFirstCheckedSteps = 3;

}  // namespace

void Job::run(Actions actions) {
  if (actions.empty()) {
    return;
  }
  context_.follow_width();  // the lane may do what it is given before this returns
  perform(actions);
}

void Job::perform(Actions& actions) {
  for (Action& action : actions) {
    std::visit([this](auto& value) { perform(value); }, action);
  }
}

bool Job::compares(std::int64_t steps) const {
  const std::int64_t every = context_.options.check_every;
  return steps < kFirstCheckedSteps || (every > 0 && steps % every == 0);
}

void Job::perform(LaunchReduce& action) {
  note_begun();
  recorder_.on_launched(word(), action.bucket, context_.now);
  device::ReduceBucket command;
  command.plan = active_->id;
  command.tag = machine_->attempt();
  command.bucket = action.bucket;
  command.unused = std::move(action.unused);
  leave_own(action.lane, command.unused);
  command.compare = active_->plan->buckets[action.bucket].groups.size() > 1 && compares(epochs_.steps());
  command.defer = action.defer;
  context_.lanes[action.lane].submit(std::move(command));
}

/// A lane that is a site of its own knows of its ranks alone.
void Job::leave_own(device::LaneId lane, std::vector<device::UnusedTensor>& unused) const {
  if (active_->comparison && active_->shares.size() > 1) {
    const SiteNumber site = active_->shares[active_->share_of(lane)].site;
    std::erase_if(unused, [&](const device::UnusedTensor& one) {
      return active_->comparison->node_of_rank[static_cast<std::size_t>(one.rank)] != site;
    });
  }
}

/// By which the outcomes of this attempt are made; they were checked when the call arrived.
template <typename Terms>
void Job::take_terms(const Terms& terms) {
  attempt_.terms.max_norm = {terms.max_norm, terms.override_max_norm ? std::size_t{1} : 0};
  attempt_.terms.scale = terms.scale;
  attempt_.terms.scaled = terms.scaled;
  attempt_.step = machine_->ask_of(locals_.rank_of(0))->step;
}

void Job::perform(LaunchFinish& action) {
  device::FinishStep command;
  command.plan = active_->id;
  command.tag = machine_->attempt();
  command.scale = action.scale;
  command.raw = !locals_.alone();
  command.sums = active_->sums;
  command.apply = !action.norm_only && !command.raw;
  command.stamp = word();
  take_terms(action);
  if (!command.raw) {
    policies_.rules(attempt_.terms, command.rules);
  }
  if (command.apply) {
    note_begun();
  }
  context_.lanes[action.lane].submit(std::move(command));
}

void Job::perform(LaunchMeasure& action) {
  context_.lanes[action.lane].submit(device::MeasureBuckets{active_->id, machine_->attempt(), std::move(action.buckets)}
  );
}

void Job::perform(Decide& action) {
  recorder_.on_measured(word(), context_.now);
  take_terms(action);
  std::vector<plan::ClipRule> rules;
  policies_.rules(attempt_.terms, rules);
  run(machine_->on_decided(join_cells(*active_->join, action.parts, rules, attempt_.terms.scale)));
}

void Job::perform(LaunchOutcomes& action) {
  context_.lanes[action.lane].submit(device::ScaleGradients{
      active_->id, machine_->attempt(), std::move(action.outcomes), std::move(action.buckets), std::move(action.absent)}
  );
}

void Job::perform(LaunchScale& action) {
  device::ScaleGradients command;
  command.plan = active_->id;
  command.tag = machine_->attempt();
  attempt_.terms.max_norm = {action.max_norm, action.override_max_norm ? attempt_.raw_norms.size() : 0};
  attempt_.terms.abandoned = action.abandon;
  std::vector<plan::ClipRule> rules;
  policies_.rules(attempt_.terms, rules);
  for (std::size_t group = 0; group < rules.size(); ++group) {
    command.outcomes.push_back(plan::apply_clip_rule(rules[group], attempt_.raw_norms[group], attempt_.terms.scale));
    if (attempt_.terms.abandoned) {
      plan::ClipOutcome outcome;
      outcome.norm = command.outcomes.back().norm;
      outcome.threshold = std::numeric_limits<double>::infinity();
      outcome.reason = "abandoned: nothing was multiplied";
      command.outcomes.back() = std::move(outcome);
    }
  }
  plan::decide_together(command.outcomes);
  attempt_.outcomes = command.outcomes;
  command.buckets = action.buckets;
  command.absent = std::move(action.absent);
  note_begun();
  context_.lanes[action.lane].submit(std::move(command));
}

void Job::perform(AskPeers& action) {
  PeerAsk ask;
  ask.word = word();
  ask.terms = std::move(action.terms);
  ask.policy_digest = policies_.digest();
  if (ask.terms.kind == Ask::Kind::Finish || ask.terms.kind == Ask::Kind::NormOnly) {
    for (const device::Finished& site : attempt_.raw) {
      ask.sites.push_back({site.raw->cells, findings_of(site.math), site.raw->class_hashes});
    }
  }
  perform(peers_->tell(LocalsAsked{std::move(ask)}));
}

void Job::perform(LaunchRead& action) {
  action.wanted.plan = active_->id;
  action.wanted.tag = machine_->attempt();
  context_.lanes[action.lane].submit(std::move(action.wanted));
}

void Job::perform(PeersOverdue& action) {
  perform(peers_->tell(LocalsOverdue{{word(), action.half, action.step, action.waited_s}}));
}

void Job::perform(TellFailed& action) { perform(peers_->tell(LocalsFailed{word(), std::move(action.error)})); }

void Job::perform(LaunchAbort& action) {
  attempt_.stop.on_told(context_.now);
  context_.lanes[action.lane].submit(device::Abort{active_->id, action.attempt});
}

void Job::perform(AnswerRank& action) { answer_step(call_of(action.rank), action.error); }

void Job::perform(NormKnown& action) {
  StepReport report = measured_report(*active_->plan, active_->constants, action.math);
  name_micro_batches(action.micro_batches, report);
  report.policy_digest = policies_.digest();
  attempt_.raw_norms = std::move(action.math.raw_group_norms);
  complete(report, machine_->attempt());
  report.next_attempt = report.attempt;
  report.check_next = compares(epochs_.steps() + 1);
  const auto shared = std::make_shared<const StepReport>(std::move(report));
  attempt_.norm = DoneRecord{{epochs_.epoch(), shared->attempt}, shared, active_->plan};
  const std::shared_ptr<const std::string> text = record_ ? text_of(*shared) : nullptr;
  for (std::size_t seat = 0; seat < attempt_.calls.size(); ++seat) {
    const auto told = report_for(shared, *active_->plan, locals_.rank_of(seat));
    answer_step(attempt_.calls[seat], RankReport{told, told == shared ? text : nullptr});
  }
}

/// Fills in the fields of a report that only the job knows.
void Job::complete(StepReport& report, std::uint64_t attempt) const {
  report.step = attempt_.step;
  report.epoch = epochs_.epoch();
  report.attempt = attempt;
  report.next_attempt = attempt + 1;
  report.timings.reduce_s = attempt_.reduce_s.empty() ? 0 : std::ranges::max(attempt_.reduce_s);
  if (attempt_.first_ask && attempt_.last_ask) {
    report.timings.wait_s = seconds(*attempt_.last_ask - *attempt_.first_ask);
    report.timings.total_s = seconds(context_.now - *attempt_.first_ask);
  }
}

}  // namespace gradsync::engine
