#include "app/doctor/examination.hpp"

#include "app/config/settings.hpp"
#include "app/daemon/gpu_workers.hpp"
#include "device/device_error.hpp"
#include "rpc/json/json_tape.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <poll.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

namespace gradsync::app {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kDepth = 4;  // a list of objects
constexpr const char* kByHand =
    "run gradsyncd doctor where the daemon runs: it prints each finding as it comes, and the last one says where it "
    "stays";
constexpr const char* kSeeLog = "the daemon's standard error has what the process said";

Error doctor_failed(std::string message, std::string hint) {
  return make_error(ErrorCode::DoctorFailed, std::move(message), std::move(hint));
}

/// Nobody hears of it.
Error shutting_down() { return make_error(ErrorCode::Draining, "the daemon is shutting down"); }

enum class Woken { Ready, Stopped, Late };

/// Waits for `fd`; no deadline: for ever.
Woken wait_for(int fd, const UniqueFd& stop, std::optional<TimePoint> deadline) {
  while (true) {
    int patience = -1;
    if (deadline) {
      const auto left = std::chrono::ceil<Milliseconds>(*deadline - Clock::now()).count();
      patience = static_cast<int>(std::clamp<Milliseconds::rep>(left, 0, 3'600'000));
    }
    std::array<pollfd, 2> watched{pollfd{fd, POLLIN, 0}, pollfd{stop.get(), POLLIN, 0}};
    const int ready = ::poll(watched.data(), watched.size(), patience);
    if (ready > 0) {
      return watched[1].revents != 0 ? Woken::Stopped : Woken::Ready;
    }
    if (ready == 0) {
      return Woken::Late;
    }
  }
}

Result<rpc::DoctorAnswer> answer_in(const std::string& text) {
  const Result<rpc::Tape> tape = rpc::read_json(text, kDepth);
  if (!tape) {
    return tape.error();
  }
  rpc::DoctorAnswer answer;
  if (const Result<void> read = rpc::read_params(tape->root(), answer.findings); !read) {
    return read.error();
  }
  answer.well = std::ranges::none_of(answer.findings, [](const rpc::DoctorFinding& finding) {
    return finding.level == rpc::DoctorFinding::Level::Problem;
  });
  return answer;
}

}  // namespace

ExaminationOptions examination_of(const GpuSection& gpu, const NcclSection& nccl) {
  ExaminationOptions options;
  options.gpu = gpu;
  options.command = {"/proc/self/exe", "doctor", "--fd", "3", "--config", "/dev/null"};
  const std::vector<std::string> flags = flags_of(gpu, nccl);
  options.command.insert(options.command.end(), flags.begin(), flags.end());
  return options;
}

Result<UniqueFd> Examination::start() {
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return doctor_failed(
        fmt::format("no pipe can be had for the doctor: {}", std::generic_category().message(errno)),
        "raise the limit of file descriptors"
    );
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  try {
    process_.emplace(options_.command, std::vector<std::string>(), theirs);
  } catch (const device::DeviceError& error) {
    return doctor_failed(fmt::format("the node cannot be examined: {}", error.what()), kByHand);
  }
  return ours;
}

Result<rpc::DoctorAnswer> Examination::run() {
  const TimePoint deadline = Clock::now() + options_.deadline;
  const Result<UniqueFd> pipe = start();
  if (!pipe) {
    return pipe.error();
  }
  const Result<std::string> text = read(pipe->get(), deadline);
  const Woken end = text ? wait_for(process_->pidfd(), stop_, deadline) : Woken::Ready;
  if (!text || end != Woken::Ready) {
    process_->kill();
    return !text ? text.error() : end == Woken::Stopped ? shutting_down() : overdue();
  }
  const std::string how = process_->wait_end(Milliseconds(0)).value_or("ended");
  Result<rpc::DoctorAnswer> answer = answer_in(*text);
  if (!answer) {
    return doctor_failed(
        fmt::format(
            "the doctor (pid {}) {}, and what it wrote is no list of findings: {}",
            process_->pid(),
            how,
            answer.error().message
        ),
        kSeeLog
    );
  }
  answer->gpus = usable_gpus(options_.gpu);
  return answer;
}

Result<std::string> Examination::read(int fd, TimePoint deadline) {
  std::string text;
  std::array<char, 16'384> part{};
  while (true) {
    switch (wait_for(fd, stop_, deadline)) {
      case Woken::Stopped:
        return shutting_down();
      case Woken::Late:
        return overdue();
      case Woken::Ready:
        break;
    }
    const ssize_t bytes = ::read(fd, part.data(), part.size());
    if (bytes == 0) {
      return text;
    }
    if (bytes < 0) {
      return doctor_failed(
          fmt::format("what the doctor writes cannot be read: {}", std::generic_category().message(errno)), kByHand
      );
    }
    text.append(part.data(), static_cast<std::size_t>(bytes));
    if (text.size() > options_.most_bytes) {
      return doctor_failed(
          fmt::format(
              "the doctor (pid {}) wrote more than {} bytes and was killed", process_->pid(), options_.most_bytes
          ),
          kByHand
      );
    }
  }
}

Error Examination::overdue() const {
  return doctor_failed(
      fmt::format(
          "the doctor (pid {}) did not end within {} ms and was killed", process_->pid(), options_.deadline.count()
      ),
      fmt::format("a driver hangs, perhaps: look at nvidia-smi and dmesg; {}", kByHand)
  );
}

bool Examination::wait_for_end(std::optional<Milliseconds> most) {
  if (!process_ || process_->wait_end(Milliseconds(0))) {
    return true;
  }
  std::optional<TimePoint> deadline;
  if (most) {
    deadline = Clock::now() + *most;
  }
  return wait_for(process_->pidfd(), stop_, deadline) == Woken::Ready &&
         process_->wait_end(Milliseconds(0)).has_value();
}

}  // namespace gradsync::app
