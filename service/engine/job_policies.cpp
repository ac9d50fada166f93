// What the policies of a job remember: committed with each step, exported, and imported on all ranks alike.

#include "base/assert.hpp"
#include "engine/job.hpp"
#include "engine/metrics.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

namespace gradsync::engine {

/// A new plan goes on with what was remembered under the one before it, the first of the job with the file.
void Job::adopt_policies() {
  const bool first = !policies_;
  policies_ = GroupPolicies(*active_->plan);
  if (!first) {
    (void)take_over_policies(saved_);
  }
  if (policies_->remember() && !policy_file_tried_ && !context_.options.policy_directory.empty()) {
    open_policy_file(first);
  }
  policy_digest_ = policies_->save(saved_);
}

/// What was saved under a plan that may have been another. False: all or some of it is lost, and that was said.
bool Job::take_over_policies(std::string_view saved) {
  const Result<bool> all = policies_->take_over(saved);
  if (!all) {
    forget_policies(all.error().message);
  } else if (!*all) {
    const std::string_view what =
        "policies begin anew whose settings were others, and those that are declared no more are forgotten";
    publish_alert("policy_state", std::string(what));
    spdlog::warn("{} job={} epoch={}", what, name_, epoch_);
  }
  return all && *all;
}

/// Once. `first`: nothing was remembered in this daemon yet.
void Job::open_policy_file(bool first) {
  policy_file_tried_ = true;
  Result<PolicyFile> file = PolicyFile::open(context_.options.policy_directory, uid_, name_);
  if (!file) {
    lose_policy_file(file.error().message);
    return;
  }
  policy_file_ = std::move(*file);
  if (first) {
    recall_policies();
  } else {
    wipe_policy_file();  // what is there is of a job before this one
  }
}

void Job::wipe_policy_file() {
  if (const Result<void> wiped = policy_file_->wipe(); !wiped) {
    spdlog::warn("old policy state stays job={} reason=\"{}\"", name_, wiped.error().message);
  }
}

void Job::recall_policies() {
  std::optional<StepKey> last;
  std::size_t known_by = 0;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const std::optional<StepKey>& known = ranks_[rank].last_done;
    if (last && known && attempt_word(*known) != attempt_word(*last)) {
      forget_policies(fmt::format(
          "the last step done is epoch {}, attempt {} to rank {} and epoch {}, attempt {} to rank {}",
          last->epoch,
          last->attempt,
          known_by,
          known->epoch,
          known->attempt,
          rank
      ));
      return;
    }
    if (known && !last) {
      last = known;
      known_by = rank;
    }
  }
  std::optional<std::string> state;
  if (last) {
    state = policy_file_->find(attempt_word(*last));
    if (!state) {
      forget_policies("the state after the step that was done last is not there");
      return;
    }
  } else if (restart_count_ > 0) {
    // Trainers that restarted load a checkpoint, and its state with it: that of the last step is for those who do not.
    std::optional<PolicyFile::Stored> stored = policy_file_->newest();
    if (!stored) {
      forget_policies("the trainers restarted, and no state is stored");
      return;
    }
    state = std::move(stored->state);
  } else {
    wipe_policy_file();  // of another job of the same name
    return;
  }
  if (!take_over_policies(*state)) {
    return;
  }
  spdlog::info("policies go on job={} epoch={}", name_, epoch_);
  if (!last) {
    publish_alert(
        "policy_state",
        "the trainers restarted: the policies go on with the state that was stored last, which may be newer than a "
        "checkpoint; load_state_dict() takes that of the checkpoint"
    );
  }
}

void Job::lose_policy_file(const std::string& why) {
  policy_file_.reset();
  publish_alert("policy_state", "a restart of the daemon will lose what the policies remember: " + why);
  spdlog::warn("policy state not kept job={} epoch={} reason=\"{}\"", name_, epoch_, why);
}

void Job::forget_policies(const std::string& why) {
  publish_alert("policy_state", "the policies begin anew: " + why);
  spdlog::warn("policies begin anew job={} epoch={} reason=\"{}\"", name_, epoch_, why);
}

/// Before anybody is told that the attempt is done. Where it cannot be stored, nothing is from then on.
void Job::store_policies(std::uint64_t attempt) {
  if (!policy_file_) {
    return;
  }
  if (const Result<void> stored = policy_file_->store(attempt_word({epoch_, attempt}), saved_); !stored) {
    wipe_policy_file();  // or restarted trainers would get what is old
    lose_policy_file(stored.error().message);
  }
}

void Job::make_rules(std::vector<plan::ClipRule>& rules) const {
  policies_->rules(step_max_norm_, rules);
  if (norm_scaled_) {  // a loss scaler takes no step after a norm that is not finite, whatever was declared
    for (plan::ClipRule& rule : rules) {
      rule.nonfinite = plan::NonfiniteAction::Skip;
    }
  }
}

/// Once for every step that is done, before anybody is told.
void Job::commit_policies(const device::StepMath& math, StepReport& report) {
  if (abandoned_) {
    for (GroupReport& group : report.groups) {
      group.watch.clear();
    }
    report.policy_digest = policy_digest_;
    store_policies(report.attempt);
    return;
  }
  policies_->commit({math.groups, math.raw_group_norms, norm_scale_, norm_scaled_, step_max_norm_}, watched_);
  const auto& groups = active_->plan->clip_groups;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    context_.metrics.policies.count(PolicyRole::Decides, groups[group].clip.policy, math.groups[group]);
    for (std::size_t watcher = 0; watcher < watched_[group].size(); ++watcher) {
      const plan::ClipOutcome& outcome = watched_[group][watcher];
      context_.metrics.policies.count(PolicyRole::Watches, groups[group].clip.watch[watcher], outcome);
      WatchReport& entry = report.groups[group].watch[watcher];
      entry.threshold = outcome.threshold;
      entry.coefficient = outcome.coefficient;
      entry.clipped = outcome.clipped;
      entry.action = outcome.action;
      entry.spike = outcome.spike;
      entry.reason = outcome.reason;
    }
  }
  if (policies_->remember()) {
    policy_digest_ = policies_->save(saved_);
  }
  report.policy_digest = policy_digest_;
  store_policies(report.attempt);
}

Result<PolicyExport> Job::export_policies() const {
  if (!policies_) {
    return make_error(
        ErrorCode::NotDeclared,
        "the job has no policies yet: its gradients are not declared",
        "call gradients.declare on every rank first"
    );
  }
  return PolicyExport{saved_, policy_digest_};
}

void Job::import_policies(std::int64_t rank_number, ImportRequest request, Reply<RankReport> reply) {
  Rank& rank = ranks_[index(rank_number)];
  if (const auto answer = answer_at_hand(rank, request.key)) {
    reply(*answer);
    return;
  }
  if (!transition_) {
    GroupPolicies trial(machine_->plan());
    if (const Result<void> restored = trial.restore(request.state); !restored) {
      reply(restored.error());
      return;
    }
  }
  const TimePoint deadline = step_deadline(request.timeout);
  if (take_step_reply(rank, request.key, make_ask(request, context_.now, deadline), std::move(reply)) && !transition_) {
    note_ask();
    import_state_ = request.state;
    run(machine_->on_import(rank_number, request, context_.now, deadline));
    follow_pauses();
  }
}

void Job::perform(Imported& action) {
  const Result<void> restored = policies_->restore(import_state_);
  GRADSYNC_ASSERT(restored.has_value(), "a state is tried before a rank may wait to import it");
  import_state_ = {};
  StepReport report;
  report.step = history_.last_step();
  report.reason = "the policies go on with the state that was imported";
  report.data_path = active_->constants.data_path;
  report.policy_digest = policy_digest_ = policies_->save(saved_);
  report.epoch = epoch_;
  report.attempt = action.attempt;
  report.next_attempt = machine_->attempt();
  report.check_next = check_next(steps_in_epoch_);
  store_policies(action.attempt);
  spdlog::info(
      "policies imported job={} epoch={} attempt={} digest={}", name_, epoch_, action.attempt, report.policy_digest
  );
  answer_done(std::make_shared<const StepReport>(std::move(report)), action.attempt);
}

}  // namespace gradsync::engine
