#include "app/cli/ask/rpc_client.hpp"
#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"
#include "app/daemon/pages/status_page.hpp"
#include "app/daemon/signals.hpp"
#include "base/text/text.hpp"

#include <fmt/color.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <limits>
#include <string>
#include <string_view>

namespace gradsync::app {

namespace {

using Json = nlohmann::ordered_json;

/// Texts in colour, where a terminal shows them. States have the colours of `gradsync status --watch`.
class Paint {
 public:
  explicit Paint(bool on) : on_(on) {}

  [[nodiscard]] std::string bold(const std::string& text) const { return as(fmt::emphasis::bold, text); }

  [[nodiscard]] std::string warning(const std::string& text) const {
    return as(fmt::fg(fmt::terminal_color::yellow), text);
  }

  [[nodiscard]] std::string failure(const std::string& text) const {
    return as(fmt::fg(fmt::terminal_color::red), text);
  }

  /// Filled with blanks up to `width`.
  [[nodiscard]] std::string state(const std::string& state, int width = 0) const {
    constexpr std::string_view kGood[] = {"serving", "ready", "stepping", "attached", "declared", "idle", "reducing"};
    const std::string text = fmt::format("{:<{}}", state, width);
    return state == "disconnected"                              ? failure(text)
           : std::ranges::find(kGood, state) != std::end(kGood) ? as(fmt::fg(fmt::terminal_color::green), text)
                                                                : warning(text);
  }

 private:
  [[nodiscard]] std::string as(const fmt::text_style& style, const std::string& text) const {
    return on_ && !text.empty() ? fmt::format(style, "{}", text) : text;
  }

  bool on_;
};

constexpr int kStateWidth = 13;

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

std::string policy_text(const Json& policy, const Paint& paint) {
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
    text += paint.warning("    ! " + sign.get<std::string>()) + "\n";
  }
  return text;
}

std::string rank_text(const Json& rank, const Paint& paint) {
  const std::string waiting = rank.value("waiting_in", "");
  const std::string measured = rank.value("measured_by", "");
  return fmt::format(
      "  rank {:<5} {} pid {:<8} {:<10} {}{}{}\n",
      rank.value("rank", 0),
      paint.state(rank.value("state", ""), kStateWidth),
      rank.value("pid", 0),
      human_bytes(rank.value("arena_bytes", std::uint64_t{0})),
      waiting.empty()
          ? ""
          : paint.warning(fmt::format("waits {} in {}", human_seconds(rank.value("waited_s", 0.0)), waiting)),
      rank.value("paused", false) ? paint.warning(" paused") : "",
      measured.empty() ? "" : " measured by " + measured
  );
}

std::string job_text(const Json& job, const Paint& paint) {
  const double age = job.value("last_commit_age_s", -1.0);
  const std::string reason = job.value("reason", "");
  const auto failed = job.value("steps_failed", std::int64_t{0});
  std::string text = fmt::format(
      "\njob {}  {}{}{}\n  step {} (epoch {}, attempt {}), {} committed, {}, last commit {}\n  {}, "
      "{} tensors in {} buckets over {}{}\n",
      paint.bold(job.value("job", "")),
      paint.state(job.value("state", "")),
      reason.empty() ? "" : ": ",
      reason,
      job.value("last_step", -1),
      job.value("epoch", 0),
      job.value("attempt", 0),
      job.value("steps_committed", 0),
      failed > 0 ? paint.failure(fmt::format("{} failed", failed)) : "0 failed",
      age < 0 ? "none" : human_seconds(age) + " ago",
      measured(job),
      job.value("tensors", 0),
      job.value("buckets", 0),
      job.value("data_path", ""),
      job.contains("partial_sums") ? ", partial sums in " + job.value("partial_sums", "") : ""
  );
  for (const Json& policy : job.value("clip", Json::array())) {
    text += policy_text(policy, paint);
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
    text += rank_text(rank, paint);
  }
  if (const std::int64_t absent = job.value("absent", std::int64_t{0}); absent > 0) {
    const auto lowest = job.value("absent_ranks", std::vector<std::int64_t>{});
    text += paint.failure(fmt::format("  {}: no process", enumerate_ranks(lowest, absent))) + "\n";
  }
  return text;
}

std::string status_text(const Json& status, const Paint& paint) {
  std::string text = fmt::format(
      "gradsyncd {} pid {}: {}, up {}\n",
      status.value("version", ""),
      status.value("pid", 0),
      paint.state(status.value("state", "")),
      human_seconds(status.value("uptime_s", 0.0))
  );
  const Json jobs = status.value("jobs", Json::array());
  if (jobs.empty()) {
    text += "no jobs\n";
  }
  for (const Json& job : jobs) {
    text += job_text(job, paint);
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
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  if (command.watch && terminal) {
    std::cout << "\x1b[H\x1b[2J";
  }
  const Environment environment = process_environment();
  const auto no_color = environment.find("NO_COLOR");
  const Paint paint{terminal && (no_color == environment.end() || no_color->second.empty())};
  std::cout << status_text(answer["result"], paint) << std::flush;
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
