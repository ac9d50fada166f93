// The record of a job for ranks that come back to another daemon, and the end of the job without answers.

#include "engine/job/job.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace gradsync::engine {

// Survivors do not declare again: with the same plan they keep the record that they have.
Result<std::shared_ptr<StepRecord>> Job::record_for(const PreparedPlan& prepared) const {
  if (prepared.encoded_bytes == 0) {
    return std::shared_ptr<StepRecord>();
  }
  if (record_ && record_->plan_digest() == prepared.plan->digest) {
    const Result<void> room = record_->make_room(attached_ranks());
    return room ? Result<std::shared_ptr<StepRecord>>(record_) : room.error();
  }
  const std::size_t text_bytes = std::min(prepared.encoded_bytes, context_.options.encoded_bytes);
  return StepRecord::create(prepared.plan->digest, attached_ranks(), text_bytes, context_.options.measure_memory({}));
}

std::optional<RecordGrant> Job::grant_record(std::int64_t rank) const {
  if (!record_) {
    return std::nullopt;
  }
  return context_.buffers.grant_record(record_, rank, identity_.uid, ranks_[rank].holder.pid, context_.now);
}

/// Before the command that writes gradients: what it leaves half done must never be taken for whole inputs.
void Job::note_begun() {
  if (record_ && active_->plan->options.data_path == plan::DataPath::Arena) {
    record_->begin(attempt_word({epochs_.epoch(), machine_->attempt()}));
  }
}

std::vector<RankReport> Job::kept_answers(const std::shared_ptr<const StepReport>& report) const {
  std::vector<RankReport> answers(locals_.size());
  for (std::size_t seat = 0; seat < answers.size(); ++seat) {
    const std::int64_t rank = locals_.rank_of(seat);
    answers[seat].report = report_for(report, *active_->plan, rank);
    if (record_) {
      const bool same = seat > 0 && answers[seat].report == answers[0].report;
      answers[seat].text = same ? answers[0].text : text_of(*answers[seat].report);
      record_->keep(static_cast<std::size_t>(rank), *answers[seat].text);
    }
  }
  return answers;
}

/// Called before any rank is answered: a rank that hears that the step is done applies it, and the others have to learn
/// that.
void Job::note_done(std::uint64_t attempt) {
  if (record_) {
    record_->finish(attempt_word({epochs_.epoch(), attempt}));
  }
}

std::shared_ptr<const std::string> Job::text_of(const StepReport& report) const {
  return std::make_shared<const std::string>(context_.options.encode_report(report, record_->room()));
}

void Job::halt() {
  perform(epochs_.on_halt());
  if (record_) {
    record_->close();
  }
  if (machine_ && (machine_->busy() || machine_->begun())) {
    run(machine_->fail(make_error(ErrorCode::Draining, "the daemon ends", "its successor goes on")));
  }
}

bool Job::at_rest() const { return !machine_ || (!machine_->voting() && (attempt_.stop.stuck() || !machine_->busy())); }

}  // namespace gradsync::engine
