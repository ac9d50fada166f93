// A state of the policies is imported on all ranks alike.

#include "engine/job/job.hpp"

#include <spdlog/spdlog.h>

#include <utility>

namespace gradsync::engine {

void Job::import_policies(std::int64_t rank, ImportRequest request, Reply<RankReport> reply) {
  if (const auto answer = answer_at_hand(rank, request.key)) {
    reply(*answer);
    return;
  }
  if (!epochs_.ending()) {
    GroupPolicies trial(machine_->plan());
    if (const Result<void> restored = trial.restore(request.state); !restored) {
      reply(restored.error());
      return;
    }
  }
  const TimePoint deadline = step_deadline(request.timeout);
  if (take_step_reply(rank, request.key, make_ask(request, context_.now, deadline), std::move(reply)) &&
      !epochs_.ending()) {
    note_ask();
    recorder_.on_asked(word(), rank, history_.last_step(), context_.now);
    attempt_.import_state = request.state;
    run(machine_->on_import(rank, request, context_.now, deadline));
    follow_step_call(rank);
  }
}

void Job::perform(PrepareImport& action) {
  PreparedAttempt& prepared = attempt_.prepared.emplace();
  prepared.report = std::make_shared<StepReport>();
  StepReport& report = *prepared.report;
  report.step = history_.last_step();
  report.reason = "the policies go on with the state that was imported";
  report.data_path = active_->constants.data_path;
  report.epoch = epochs_.epoch();
  report.attempt = action.attempt;
  report.next_attempt = action.attempt + 1;
  report.check_next = compares(epochs_.steps());
  policies_.prepare_import(attempt_.import_state, report);
  prepared.result = report.policy_digest;
  vote();
}

void Job::perform(Imported& action) {
  policies_.commit_import();
  spdlog::info(
      "policies imported job={} epoch={} attempt={} digest={}",
      identity_.name,
      epochs_.epoch(),
      action.attempt,
      policies_.digest()
  );
  answer_done(action.attempt);
}

}  // namespace gradsync::engine
