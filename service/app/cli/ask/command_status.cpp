#include "app/cli/ask/rpc_client.hpp"
#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"
#include "app/daemon/pages/status_page.hpp"
#include "app/daemon/signals.hpp"
#include "base/text/text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <limits>

namespace gradsync::app {

namespace {

using Json = nlohmann::ordered_json;

/// Norm and threshold, for people; the wire writes what JSON cannot carry as a text.
std::string measured(const Json& job) {
  const Json norm = job.value("norm", Json());
  const Json threshold = job.value("threshold", Json());
  return fmt::format(
      "norm {}, {}",
      norm.is_number()   ? fmt::format("{:.6g}", norm.get<double>())
      : norm.is_string() ? "not finite"
                         : "–",
      threshold.is_number() ? "threshold " + threshold_text(threshold.get<double>()) : "no threshold"
  );
}

/// Thresholds that are infinite are texts on the wire.
double number_of(const Json& policy, const char* name) {
  const Json value = policy.value(name, Json());
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::infinity();
}

std::string policy_text(const Json& policy) {
  engine::ClipStatus one;
  one.group = policy.value("group", "");
  one.policy = policy.value("policy", "");
  one.watches = policy.value("watches", false);
  one.steps = policy.value("steps", std::int64_t{0});
  one.clip_rate = policy.value("clip_rate", 0.0);
  one.threshold = number_of(policy, "threshold");
  one.threshold_lowest = number_of(policy, "threshold_lowest");
  one.threshold_highest = number_of(policy, "threshold_highest");
  std::string text = "  " + clip_text(one) + "\n";
  for (const Json& sign : policy.value("signs", Json::array())) {
    text += "    ! " + sign.get<std::string>() + "\n";
  }
  return text;
}

std::string job_text(const Json& job) {
  const double age = job.value("last_commit_age_s", -1.0);
  const std::string reason = job.value("reason", "");
  std::string text = fmt::format(
      "\njob {}  {}{}{}\n  step {} (epoch {}, attempt {}), {} committed, {} failed, last commit {}\n  {}, "
      "{} tensors in {} buckets over {}{}\n",
      job.value("job", ""),
      job.value("state", ""),
      reason.empty() ? "" : ": ",
      reason,
      job.value("last_step", -1),
      job.value("epoch", 0),
      job.value("attempt", 0),
      job.value("steps_committed", 0),
      job.value("steps_failed", 0),
      age < 0 ? "none" : human_seconds(age) + " ago",
      measured(job),
      job.value("tensors", 0),
      job.value("buckets", 0),
      job.value("data_path", ""),
      job.contains("partial_sums") ? ", partial sums in " + job.value("partial_sums", "") : ""
  );
  for (const Json& policy : job.value("clip", Json::array())) {
    text += policy_text(policy);
  }
  for (const Json& group : job.value("communicators", Json::array())) {
    const double used = group.value("last_use_age_s", -1.0);
    text += fmt::format(
        "  over nodes {} {} ranks by {}, {}: {} sent, {} received in {} {}, last {}\n",
        group.value("name", ""),
        group.value("ranks", Json::array()).size(),
        group.value("transport", ""),
        group.value("state", ""),
        human_bytes(group.value("sent_bytes", std::uint64_t{0})),
        human_bytes(group.value("received_bytes", std::uint64_t{0})),
        group.value("operations", std::uint64_t{0}),
        group.value("transport", "") == "nccl" ? "collectives" : "reductions",
        used < 0 ? "never" : human_seconds(used) + " ago"
    );
  }
  for (const Json& rank : job.value("ranks", Json::array())) {
    const std::string waiting = rank.value("waiting_in", "");
    const std::string measured = rank.value("measured_by", "");
    text += fmt::format(
        "  rank {:<5} {:<13} pid {:<8} {:<10} {}{}{}\n",
        rank.value("rank", 0),
        rank.value("state", ""),
        rank.value("pid", 0),
        human_bytes(rank.value("arena_bytes", std::uint64_t{0})),
        waiting.empty() ? "" : fmt::format("waits {} in {}", human_seconds(rank.value("waited_s", 0.0)), waiting),
        rank.value("paused", false) ? " paused" : "",
        measured.empty() ? "" : " measured by " + measured
    );
  }
  if (const std::int64_t absent = job.value("absent", std::int64_t{0}); absent > 0) {
    const auto lowest = job.value("absent_ranks", std::vector<std::int64_t>{});
    text += fmt::format("  {}: no process\n", enumerate_ranks(lowest, absent));
  }
  return text;
}

std::string status_text(const Json& status) {
  std::string text = fmt::format(
      "gradsyncd {} pid {}: {}, up {}\n",
      status.value("version", ""),
      status.value("pid", 0),
      status.value("state", ""),
      human_seconds(status.value("uptime_s", 0.0))
  );
  const Json jobs = status.value("jobs", Json::array());
  if (jobs.empty()) {
    text += "no jobs\n";
  }
  for (const Json& job : jobs) {
    text += job_text(job);
  }
  if (const auto left_out = status.value("jobs_left_out", std::int64_t{0}); left_out > 0) {
    text += fmt::format("{} more jobs do not fit into one answer\n", left_out);
  }
  return text;
}

/// 0, or the exit code of what went wrong.
int show_once(const StatusCommand& command, const std::string& socket) {
  const Result<HttpReplyText> reply = post_rpc(socket, R"({"jsonrpc":"2.0","id":1,"method":"status.get","params":{}})");
  if (reply.has_error()) {
    complain(reply.error().message, reply.error().hint);
    return kExitUnavailable;
  }
  const Json answer = Json::parse(reply->body, nullptr, false);
  if (!answer.is_object() || !answer.contains("result")) {
    complain(fmt::format("the daemon at '{}' answered {}: {}", socket, reply->status, reply->body), "");
    return kExitFailure;
  }
  if (command.json) {
    std::cout << answer["result"].dump() << "\n" << std::flush;
    return kExitOk;
  }
  if (command.watch && ::isatty(STDOUT_FILENO) != 0) {
    std::cout << "\x1b[H\x1b[2J";
  }
  std::cout << status_text(answer["result"]) << std::flush;
  return kExitOk;
}

}  // namespace

int execute(const StatusCommand& command) {
  const Result<std::string> found = find_daemon(command.address, process_environment(), this_caller());
  if (found.has_error()) {
    complain(found.error().message, found.error().hint);
    return kExitUnavailable;
  }
  const std::string& socket = *found;
  if (!command.watch) {
    return show_once(command, socket);
  }
  const std::vector<int> stops{SIGINT, SIGTERM};
  block_signals(stops);
  sigset_t stop_set;
  ::sigemptyset(&stop_set);
  for (const int number : stops) {
    ::sigaddset(&stop_set, number);
  }
  for (;;) {
    if (const int code = show_once(command, socket); code != kExitOk) {
      return code;
    }
    const timespec second{1, 0};
    if (::sigtimedwait(&stop_set, nullptr, &second) > 0) {
      return kExitOk;
    }
  }
}

}  // namespace gradsync::app
