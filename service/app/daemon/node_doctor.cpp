#include "app/daemon/node_doctor.hpp"

#include "base/thread_name.hpp"

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <utility>

namespace gradsync::app {

namespace {

/// From the end of what it wrote, or from its death, to the end of the process; then it counts as stuck.
constexpr Milliseconds kEndOfProcess{1000};

}  // namespace

NodeDoctor::NodeDoctor(boost::asio::io_context& io, ExaminationOptions options, std::uint32_t own_uid)
    : io_(io),
      options_(std::move(options)),
      budget_(kMostWaiting, own_uid),
      timer_(io),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_.valid()) {
    throw std::system_error(errno, std::generic_category(), "no eventfd can be had for the doctor");
  }
}

NodeDoctor::~NodeDoctor() {
  stop();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void NodeDoctor::ask(const Holder& caller, Reply reply) {
  if (stopped_) {
    reply(make_error(ErrorCode::Draining, "the daemon is shutting down and examines nothing any more"));
    return;
  }
  if (state_ == State::Stuck) {
    reply(make_error(
        ErrorCode::DoctorFailed,
        fmt::format("the doctor before (pid {}) was killed and does not end, so no other is started", stuck_),
        "a driver hangs: look at nvidia-smi and dmesg"
    ));
    return;
  }
  if (const auto refused = budget_.refuse(caller)) {
    reply(make_error(
        ErrorCode::LimitExceeded,
        fmt::format(
            "{} calls of doctor.run of {} wait, its limit is {} ({} in all)",
            refused->held,
            refused->whose,
            refused->most,
            budget_.most()
        ),
        "one examination answers all of them: wait for it"
    ));
    return;
  }
  waiting_.push_back({std::move(reply), FairBudget::Share(budget_, caller, 1)});
  if (state_ == State::Idle) {
    start();
  }
}

void NodeDoctor::stop() {
  if (std::exchange(stopped_, true)) {
    return;
  }
  waiting_.clear();
  timer_.cancel();
  const std::uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
}

void NodeDoctor::start() {
  state_ = State::Examining;
  started_ = std::chrono::steady_clock::now();
  try {
    thread_ = std::thread([this] {
      name_this_thread("doctor");
      work();
    });
  } catch (const std::system_error& error) {
    state_ = State::Idle;
    answer_all(make_error(
        ErrorCode::DoctorFailed,
        fmt::format("no thread can be had for the doctor: {}", error.what()),
        "raise the limit of processes (TasksMax, ulimit -u)"
    ));
  }
}

void NodeDoctor::work() {
  Examination examination(options_, stop_);
  const auto examine = [&]() -> Result<rpc::DoctorAnswer> {
    try {
      return examination.run();
    } catch (const std::exception& error) {
      return make_error(ErrorCode::DoctorFailed, fmt::format("the node cannot be examined: {}", error.what()));
    }
  };
  Result<rpc::DoctorAnswer> answer = examine();
  const pid_t stuck = examination.wait_for_end(kEndOfProcess) ? 0 : examination.pid();
  boost::asio::post(io_, [this, answer = std::move(answer), stuck] { on_answer(answer, stuck); });
  if (stuck != 0 && examination.wait_for_end(std::nullopt)) {
    boost::asio::post(io_, [this] { rest(); });
  }
}

void NodeDoctor::on_answer(const Result<rpc::DoctorAnswer>& answer, pid_t stuck) {
  if (stopped_) {
    return;
  }
  stuck_ = stuck;
  took_ = std::chrono::steady_clock::now() - started_;
  if (stuck == 0) {
    rest();
  } else {
    state_ = State::Stuck;
    spdlog::error("the doctor was killed and does not end pid={}", stuck);
  }
  answer_all(answer);
}

void NodeDoctor::answer_all(const Result<rpc::DoctorAnswer>& answer) {
  if (!answer) {
    spdlog::warn("the node was not examined: {}", answer.error().message);
  }
  for (const Waiting& each : std::exchange(waiting_, {})) {
    each.reply(answer);
  }
}

void NodeDoctor::rest() {
  if (stopped_) {
    return;
  }
  thread_.join();  // it has nothing left to do
  state_ = State::Resting;
  timer_.expires_after(took_);
  timer_.async_wait([this](boost::system::error_code error) {
    if (error || stopped_) {
      return;
    }
    state_ = State::Idle;
    if (!waiting_.empty()) {
      start();
    }
  });
}

}  // namespace gradsync::app
