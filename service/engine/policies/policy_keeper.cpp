#include "engine/policies/policy_keeper.hpp"

#include "base/assert.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

namespace gradsync::engine {

namespace {

constexpr const char* kPolicyState = "policy_state";

/// The step that the ranks know as done last; none where no rank knows one. Error: two ranks name different steps.
Result<std::optional<StepKey>> last_step_of(const std::vector<LastDone>& last_done) {
  if (last_done.empty()) {
    return std::optional<StepKey>();
  }
  const LastDone& first = last_done.front();
  for (const LastDone& other : last_done) {
    if (attempt_word(other.step) != attempt_word(first.step)) {
      return make_error(
          ErrorCode::InvalidParams,
          fmt::format(
              "the last step done is epoch {}, attempt {} to rank {} and epoch {}, attempt {} to rank {}",
              first.step.epoch,
              first.step.attempt,
              first.rank,
              other.step.epoch,
              other.step.attempt,
              other.rank
          )
      );
    }
  }
  return std::optional(first.step);
}

}  // namespace

PolicyKeeper::PolicyKeeper(Job job, std::string directory, PolicyMetrics& metrics, Alert alert)
    : job_(std::move(job)), directory_(std::move(directory)), metrics_(metrics), alert_(std::move(alert)) {}

void PolicyKeeper::adopt(const plan::Plan& plan, const std::vector<LastDone>& last_done) {
  plan_digest_ = plan.digest;
  const bool first = !policies_;
  GroupPolicies next(plan);
  if (!first) {
    next.continue_health(std::move(*policies_));
  }
  policies_ = std::move(next);
  if (!first) {
    (void)take_over(saved_);
  }
  if (policies_->remember() && !file_tried_ && !directory_.empty()) {
    open_file(first, last_done);
  }
  digest_ = policies_->save(saved_);
}

Result<void> PolicyKeeper::take_given(const std::string& state) {
  if (Result<void> restored = policies_->restore(state); !restored) {
    return restored;
  }
  digest_ = policies_->save(saved_);
  anew_ = false;
  return {};
}

/// Takes over a state that may have been saved under another plan. False: all or some of it is lost, and an alert said
/// so.
bool PolicyKeeper::take_over(std::string_view saved) {
  const Result<bool> all = policies_->take_over(saved);
  if (!all) {
    forget(all.error().message);
  } else if (!*all) {
    const std::string what =
        "policies begin anew whose settings were others, and those that are declared no more are forgotten";
    alert_(kPolicyState, what);
    spdlog::warn("{} job={}", what, job_.name);
  }
  return all && *all;
}

/// Called once. `first`: nothing was remembered in this daemon yet.
void PolicyKeeper::open_file(bool first, const std::vector<LastDone>& last_done) {
  file_tried_ = true;
  Result<PolicyFile> file = PolicyFile::open(directory_, job_.uid, job_.name);
  if (!file) {
    lose_file(file.error().message);
    return;
  }
  file_ = std::move(*file);
  if (first) {
    recall(last_done);
  } else {
    wipe_file();  // the stored state is that of an earlier job
  }
}

void PolicyKeeper::wipe_file() {
  if (const Result<void> wiped = file_->wipe(); !wiped) {
    spdlog::warn("old policy state stays job={} reason=\"{}\"", job_.name, wiped.error().message);
  }
}

void PolicyKeeper::recall(const std::vector<LastDone>& last_done) {
  const Result<std::optional<StepKey>> agreed = last_step_of(last_done);
  if (!agreed) {
    forget(agreed.error().message);
    return;
  }
  const std::optional<StepKey>& last = *agreed;
  std::optional<std::string> state;
  if (last) {
    state = file_->find(attempt_word(*last));
    if (!state) {
      forget("the state after the step that was done last is not there");
      return;
    }
  } else if (job_.restart_count > 0) {
    // Restarted trainers that load a checkpoint bring its state along; the state of the last step is for those that do
    // not.
    std::optional<PolicyFile::Stored> stored = file_->newest();
    if (!stored) {
      forget("the trainers restarted, and no state is stored");
      return;
    }
    state = std::move(stored->state);
  } else {
    wipe_file();  // of another job of the same name
    return;
  }
  if (!take_over(*state)) {
    return;
  }
  anew_ = false;
  spdlog::info("policies go on job={}", job_.name);
  if (!last) {
    alert_(
        kPolicyState,
        "the trainers restarted: the policies go on with the state that was stored last, which may be newer than a "
        "checkpoint; load_state_dict() takes that of the checkpoint"
    );
  }
}

void PolicyKeeper::lose_file(const std::string& why) {
  file_.reset();
  alert_(kPolicyState, "a restart of the daemon will lose what the policies remember: " + why);
  spdlog::warn("policy state not kept job={} reason=\"{}\"", job_.name, why);
}

void PolicyKeeper::forget(const std::string& why) {
  alert_(kPolicyState, "the policies begin anew: " + why);
  spdlog::warn("policies begin anew job={} reason=\"{}\"", job_.name, why);
}

/// If it cannot be staged, nothing is stored from then on.
void PolicyKeeper::stage(const StepReport& report, const std::string& state) {
  if (!file_) {
    return;
  }
  const PolicyFile::Vote vote = job_.alone ? PolicyFile::Vote::Alone : PolicyFile::Vote::Pending;
  if (const Result<void> staged = file_->stage(attempt_word({report.epoch, report.attempt}), state, vote); !staged) {
    wipe_file();  // or restarted trainers would get what is old
    lose_file(staged.error().message);
  }
}

void PolicyKeeper::keep_state() {
  anew_ = false;
  if (std::exchange(next_made_, false)) {
    saved_.swap(next_);
    digest_.swap(next_digest_);
  }
  if (file_) {
    file_->keep();
  }
}

void PolicyKeeper::settle() {
  if (!file_) {
    return;
  }
  if (const Result<void> settled = file_->settle(); !settled) {
    wipe_file();
    lose_file(settled.error().message);
  }
}

void PolicyKeeper::rules(const StepTerms& terms, std::vector<plan::ClipRule>& rules) const {
  policies_->rules(terms.max_norm, rules);
  if (terms.scaled) {
    for (plan::ClipRule& rule : rules) {
      rule.nonfinite = plan::NonfiniteAction::Skip;
    }
  }
}

void PolicyKeeper::prepare(const device::StepMath& math, const StepTerms& terms, StepReport& report) {
  if (terms.abandoned) {
    for (GroupReport& group : report.groups) {
      group.watch.clear();
    }
    report.policy_digest = digest_;
    stage(report, saved_);
    return;
  }
  policies_->prepare({math.groups, math.raw_group_norms, terms.scale, terms.scaled, terms.max_norm}, step_);
  report_watched(report);
  if (policies_->remember()) {
    next_digest_ = policies_->save(next_);
    next_made_ = true;
  }
  report.policy_digest = next_made_ ? next_digest_ : digest_;
  stage(report, next_made_ ? next_ : saved_);
}

void PolicyKeeper::report_watched(StepReport& report) const {
  for (std::size_t group = 0; group < step_.watched.size(); ++group) {
    for (std::size_t watcher = 0; watcher < step_.watched[group].size(); ++watcher) {
      const plan::ClipOutcome& outcome = step_.watched[group][watcher];
      WatchReport& entry = report.groups[group].watch[watcher];
      entry.threshold = outcome.threshold;
      entry.coefficient = outcome.coefficient;
      entry.clipped = outcome.clipped;
      entry.action = outcome.action;
      entry.spike = outcome.spike;
      entry.reason = outcome.reason;
    }
  }
}

void PolicyKeeper::commit(
    const plan::Plan& plan, const std::vector<plan::ClipOutcome>& outcomes, const StepTerms& terms, std::int64_t step
) {
  keep_state();
  if (terms.abandoned) {
    return;
  }
  const auto& groups = plan.clip_groups;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    metrics_.count(PolicyRole::Decides, groups[group].clip.policy, outcomes[group]);
    for (std::size_t watcher = 0; watcher < step_.watched[group].size(); ++watcher) {
      metrics_.count(PolicyRole::Watches, groups[group].clip.watch[watcher], step_.watched[group][watcher]);
    }
  }
  policies_->commit(step_);
  say_changes(step);
}

void PolicyKeeper::prepare_import(const std::string& state, StepReport& report) {
  const Result<void> restored = policies_->restore(state);
  GRADSYNC_ASSERT(restored.has_value(), "a state is tried before a rank may wait to import it");
  next_digest_ = policies_->save(next_);
  next_made_ = true;
  report.policy_digest = next_digest_;
  stage(report, next_);
}

void PolicyKeeper::commit_import() { keep_state(); }

void PolicyKeeper::restore() {
  next_made_ = false;
  const Result<void> restored = policies_->restore(saved_);
  GRADSYNC_ASSERT(restored.has_value(), "policies take back what they saved");
}

void PolicyKeeper::say_changes(std::int64_t step) {
  for (const HealthChange& change : step_.changes) {
    for (const policy::Sign sign : policy::kSigns) {
      const auto bit = static_cast<std::size_t>(sign);
      const bool began = change.signs.began.test(bit);
      if (!began && !change.signs.ended.test(bit)) {
        continue;
      }
      if (began) {
        metrics_.sign_began(sign);
      }
      const std::string what =
          fmt::format("{}step {}, {}", began ? "" : "over: ", step, policies_->words(change, sign));
      alert_("clip_health", what);
      spdlog::warn("{} job={} sign={}", what, job_.name, policy::name_of(sign));
    }
  }
}

std::vector<ClipStatus> PolicyKeeper::status() const {
  return policies_ ? policies_->status() : std::vector<ClipStatus>();
}

Result<PolicyExport> PolicyKeeper::exported() const {
  if (!policies_) {
    return make_error(
        ErrorCode::NotDeclared,
        "the job has no policies yet: its gradients are not declared",
        "call gradients.declare on every rank first"
    );
  }
  return PolicyExport{saved_, digest_};
}

}  // namespace gradsync::engine
