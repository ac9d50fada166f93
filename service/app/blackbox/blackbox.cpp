#include "app/blackbox/blackbox.hpp"

#include "app/blackbox/dump_folder.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>
#include <vector>

namespace gradsync::app {

namespace {

std::int64_t unix_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace

Blackbox::Blackbox(boost::asio::io_context& io, Options options)
    : options_(std::move(options)),
      writer_(io, options_.folder, options_.kept_files, [this](const std::string& name, const Result<void>& written) {
        on_written(name, written);
      }) {}

void Blackbox::connect(engine::Engine& engine, EngineClock& clock) {
  engine_ = &engine;
  clock_ = &clock;
}

std::string Blackbox::next_name(const engine::JobKey& job) {
  return DumpName{unix_us(), ++dumps_, job.first, job.second, options_.node}.file();
}

bool Blackbox::write(engine::FlightDump dump, std::string name, rpc::DumpReason why) {
  rpc::DumpOrigin origin{why, options_.node, options_.incarnation, options_.release, unix_us()};
  return writer_.write({std::move(name), std::move(dump), std::move(origin)});
}

void Blackbox::on_failure(engine::FlightDump dump) {
  if (options_.folder.empty() || stopped_) {
    return;
  }
  std::string name = next_name({dump.uid, dump.job});
  const std::string job = dump.job;
  if (!write(std::move(dump), std::move(name), rpc::DumpReason::Failure)) {
    spdlog::debug("a failure has no dump, because others wait to be written job={}", job);
  }
}

Result<std::vector<Blackbox::Wanted>> Blackbox::wanted_of(const std::optional<std::string>& job) {
  if (options_.folder.empty()) {
    return make_error(
        ErrorCode::InvalidRequest, "blackbox.folder is \"off\": there are no dumps", "give the daemon a folder for them"
    );
  }
  std::vector<Wanted> wanted;
  for (const engine::JobKey& key : engine_->recorded_jobs()) {
    if (!job || key.second == *job) {
      wanted.push_back({key, next_name(key), nullptr});
    }
  }
  if (job && wanted.empty()) {
    Error error =
        make_error(ErrorCode::UnknownJob, fmt::format("no job '{}' is known here", *job), "status.get lists the jobs");
    error.path = "job";
    error.job = *job;
    return error;
  }
  if (wanted_.size() + wanted.size() > kMostWanted) {
    return make_error(
        ErrorCode::LimitExceeded,
        fmt::format("{} jobs wait to be dumped, the limit is {}", wanted_.size(), kMostWanted),
        "wait until they are written"
    );
  }
  return wanted;
}

void Blackbox::dump(rpc::DumpReason why, const std::optional<std::string>& job, engine::Reply<rpc::DumpAnswer> reply) {
  Result<std::vector<Wanted>> wanted = wanted_of(job);
  if (!wanted) {
    reply(wanted.error());
    return;
  }
  if (wanted->empty()) {
    reply(rpc::DumpAnswer{});
    return;
  }
  const auto asked = std::make_shared<Asked>(Asked{why, std::move(reply), wanted->size(), {}, {}});
  for (Wanted& each : *wanted) {
    each.asked = asked;
    wanted_.push_back(std::move(each));
  }
  if (!writing_ && writer_.idle()) {
    take_next();
  }
}

void Blackbox::take_next() {
  while (!wanted_.empty()) {
    Wanted next = std::move(wanted_.front());
    wanted_.pop_front();
    std::optional<engine::FlightDump> dump = engine_->dump_of(next.job);
    if (!dump) {
      finish(next);  // the job is gone
      continue;
    }
    if (write(*std::move(dump), next.name, next.asked->why)) {
      writing_ = std::move(next);
      return;
    }
    spdlog::warn(
        "a dump of the flight recorder is lost, because others wait job={} file={}", next.job.second, next.name
    );
    next.asked->error = make_error(
        ErrorCode::LimitExceeded,
        fmt::format("job '{}' is not dumped, because others wait to be written", next.job.second),
        "wait until they are written"
    );
    finish(next);
  }
}

/// Dumps of failures come here too, between those that are wanted.
void Blackbox::on_written(const std::string& name, const Result<void>& written) {
  if (stopped_) {
    return;
  }
  if (writing_ && writing_->name == name) {
    const Wanted done = *std::exchange(writing_, std::nullopt);
    if (written) {
      done.asked->answer.dumps.push_back({done.job.second, done.job.first, options_.folder + "/" + name});
    } else if (!done.asked->error) {
      done.asked->error = written.error();
    }
    finish(done);
  }
  if (!writing_ && !wanted_.empty()) {
    clock_->turn("a dump", [this] { take_next(); });
  }
}

void Blackbox::finish(const Wanted& wanted) {
  Asked& asked = *wanted.asked;
  if (--asked.left > 0) {
    return;
  }
  if (asked.error) {
    asked.reply(*asked.error);
  } else {
    asked.reply(std::move(asked.answer));
  }
}

void Blackbox::stop() {
  stopped_ = true;
  if (writing_) {
    wanted_.push_front(*std::exchange(writing_, std::nullopt));
  }
  for (const Wanted& left : std::exchange(wanted_, {})) {
    left.asked->error = make_error(ErrorCode::Draining, "the daemon is shutting down");
    finish(left);
  }
  writer_.stop();
}

}  // namespace gradsync::app
