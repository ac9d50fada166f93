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
    : options_(std::move(options)), writer_(io, options_.folder, options_.kept_files, [this] {
        if (!stopped_ && !wanted_.empty()) {
          clock_->turn("a dump", [this] { take_next(); });
        }
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

Result<rpc::DumpAnswer> Blackbox::dump(rpc::DumpReason why, const std::optional<std::string>& job) {
  if (options_.folder.empty()) {
    return make_error(
        ErrorCode::InvalidRequest, "blackbox.folder is \"off\": there are no dumps", "give the daemon a folder for them"
    );
  }
  rpc::DumpAnswer answer;
  std::vector<Wanted> wanted;
  for (const engine::JobKey& key : engine_->recorded_jobs()) {
    if (!job || key.second == *job) {
      wanted.push_back({key, next_name(key), why});
      answer.dumps.push_back({key.second, key.first, options_.folder + "/" + wanted.back().name});
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
  wanted_.insert(wanted_.end(), wanted.begin(), wanted.end());
  if (writer_.idle()) {
    take_next();
  }
  return answer;
}

void Blackbox::take_next() {
  while (!wanted_.empty()) {
    const Wanted next = std::move(wanted_.front());
    wanted_.pop_front();
    std::optional<engine::FlightDump> dump = engine_->dump_of(next.job);
    if (!dump) {
      continue;  // the job is gone
    }
    if (write(*std::move(dump), next.name, next.why)) {
      return;
    }
    spdlog::warn(
        "a dump of the flight recorder is lost, because others wait job={} file={}", next.job.second, next.name
    );
  }
}

void Blackbox::stop() {
  stopped_ = true;
  wanted_.clear();
  writer_.stop();
}

}  // namespace gradsync::app
