// The messages about buckets and tensors that ranks send before they finish. A notification has no answer, so its error
// is kept and given out with the finish.

#include "engine/step/step_machine.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::engine {

std::optional<Error> StepMachine::bad_unused(
    std::int64_t rank, const char* path, const std::vector<std::uint32_t>& rows
) const {
  if (!rows.empty() && plan_->options.data_path == plan::DataPath::Stats) {
    return invalid_params(
        path,
        "no tensor is called unused on data path stats",
        "write stamp 0 into the row of a tensor that has no gradient"
    );
  }
  const std::size_t declared = rows_of(seat(rank)).size();
  for (const std::uint32_t row : rows) {
    if (row >= declared) {
      return invalid_params(path, fmt::format("tensor {} does not exist: rank {} declared {}", row, rank, declared));
    }
  }
  return std::nullopt;
}

void StepMachine::mark_unused(std::int64_t rank_number, const std::vector<std::uint32_t>& rows) {
  Rank& rank = ranks_[seat(rank_number)];
  for (const std::uint32_t row : rows) {
    if (rank.is_unused[row]) {
      continue;
    }
    const std::uint32_t tensor = rows_of(seat(rank_number))[row];
    if (rank.ready[plan_->tensors[tensor].bucket]) {
      // The bucket may already be reduced with this tensor's memory in it.
      Error error = make_error(
          ErrorCode::DuplicateReady,
          fmt::format(
              "rank {} called tensor '{}' unused after its bucket {} was ready",
              rank_number,
              plan_->tensors[tensor].declaration.name,
              plan_->tensors[tensor].bucket
          ),
          "mark tensors unused before the last tensor of their bucket is ready"
      );
      error.rank = rank_number;
      error.tensor = plan_->tensors[tensor].declaration.name;
      rank.notification_error = rank.notification_error.value_or(std::move(error));
      continue;
    }
    rank.is_unused[row] = true;
    rank.unused.push_back(row);
    unused_[plan_->tensors[tensor].bucket].push_back({tensor, rank_number});
  }
}

Actions StepMachine::on_bucket_ready(
    std::int64_t rank_number, std::uint64_t attempt, std::uint32_t bucket, std::optional<std::int64_t> micro_batch
) {
  Actions actions;
  Rank& rank = ranks_[seat(rank_number)];
  if (attempt < attempt_ || course_.error) {
    return actions;  // of an attempt that ended; its finish gets the recorded answer
  }
  if (attempt > attempt_) {
    rank.notification_error = rank.notification_error.value_or(*stale(rank_number, attempt));
    return actions;
  }
  if (bucket >= plan_->buckets.size()) {
    rank.notification_error = rank.notification_error.value_or(invalid_params(
        "bucket", fmt::format("bucket {} does not exist: the plan has {}", bucket, plan_->buckets.size())
    ));
    return actions;
  }
  if (!holds(seat(rank_number), bucket)) {
    rank.notification_error = rank.notification_error.value_or(not_held(rank_number, "bucket", bucket));
    return actions;
  }
  if (rank.ready[bucket]) {
    Error error = make_error(
        ErrorCode::DuplicateReady,
        fmt::format("rank {} reported bucket {} ready twice in attempt {}", rank_number, bucket, attempt),
        "report each bucket once per step"
    );
    error.rank = rank_number;
    error.bucket = bucket;
    rank.notification_error = rank.notification_error.value_or(std::move(error));
    return actions;
  }
  rank.ready[bucket] = true;
  rank.notified.push_back({bucket, micro_batch});
  launch_ready(actions);
  return actions;
}

Actions StepMachine::on_unused(
    std::int64_t rank_number, std::uint64_t attempt, const std::vector<std::uint32_t>& rows
) {
  Rank& rank = ranks_[seat(rank_number)];
  if (attempt < attempt_ || course_.error) {
    return {};
  }
  if (attempt > attempt_) {
    rank.notification_error = rank.notification_error.value_or(*stale(rank_number, attempt));
    return {};
  }
  if (std::optional<Error> error = bad_unused(rank_number, "tensors", rows)) {
    rank.notification_error = rank.notification_error.value_or(std::move(*error));
    return {};
  }
  mark_unused(rank_number, rows);
  return {};
}

std::optional<std::int64_t> StepMachine::micro_batch_of(std::int64_t rank_number, std::uint32_t bucket) const {
  const std::optional<std::size_t> here = locals_.seat_of(rank_number);
  if (!here) {
    return std::nullopt;  // its node knows
  }
  const Rank& rank = ranks_[*here];
  const auto said = std::find_if(rank.notified.begin(), rank.notified.end(), [bucket](const Notified& each) {
    return each.bucket == bucket;
  });
  return said == rank.notified.end() ? rank.micro_batch : said->micro_batch;
}

MicroBatches StepMachine::micro_batches(const std::vector<device::NonfiniteFinding>& findings) const {
  MicroBatches found;
  if (plan_->options.data_path == plan::DataPath::Stats) {
    return found;  // the framework accumulated, and the rows say nothing of it
  }
  for (const device::NonfiniteFinding& finding : findings) {
    auto& of_inputs = found.emplace_back();
    for (const auto& input : finding.inputs) {
      of_inputs.push_back(micro_batch_of(input.first, plan_->tensors[finding.tensor].bucket));
    }
  }
  return found;
}

}  // namespace gradsync::engine
