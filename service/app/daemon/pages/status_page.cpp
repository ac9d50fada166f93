#include "app/daemon/pages/status_page.hpp"

#include "base/text/text.hpp"

#include <fmt/format.h>

#include <cmath>

namespace gradsync::app {

namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-bottom: .2rem; }
p.reason { margin-top: 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dt { opacity: .7; } dd { margin: 0; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2rem .6rem; border-bottom: 1px solid var(--line); }
th { opacity: .7; font-weight: normal; } code { background: var(--soft); padding: 0 .3em; border-radius: .2em; }
)";

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.6g}", value) : "not finite"; }

std::string ranks_table(const engine::JobStatus& job) {
  std::string rows;
  for (const engine::RankStatus& rank : job.ranks) {
    rows += fmt::format(
        "<tr><td>{}</td><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        rank.rank,
        escaped(rank.state),
        rank.paused ? ", paused" : "",
        rank.pid == 0 ? "–" : std::to_string(rank.pid),
        rank.waiting_in.empty() ? "–"
                                : fmt::format("{} for {}", escaped(rank.waiting_in), human_seconds(rank.waited_s)),
        human_bytes(rank.arena_bytes),
        rank.measured_by.empty() ? "–" : escaped(rank.measured_by)
    );
  }
  return "<table><tr><th>rank</th><th>state</th><th>pid</th><th>waits in</th><th>memory</th>"
         "<th>measured by</th></tr>\n" +
         rows + "</table>\n" +
         (job.absent == 0 ? "" : "<p>" + enumerate_ranks(job.absent_ranks, job.absent) + ": no process</p>\n");
}

std::string clip_list(const std::vector<engine::ClipStatus>& policies) {
  std::string items;
  for (const engine::ClipStatus& one : policies) {
    items += "<li>" + escaped(clip_text(one));
    for (const std::string& sign : one.signs) {
      items += "<br><strong>" + escaped(sign) + "</strong>";
    }
    items += "</li>\n";
  }
  return items.empty() ? "" : "<ul>\n" + items + "</ul>\n";
}

std::string job_section(const engine::JobStatus& job) {
  const std::string commit = job.last_commit_age_s < 0 ? "none yet" : human_seconds(job.last_commit_age_s) + " ago";
  return fmt::format(
             "<section><h2>{}</h2>\n<p class=\"reason\">{}{}{}</p>\n"
             "<dl><dt>last step</dt><dd>{} (epoch {}, attempt {})</dd><dt>last commit</dt><dd>{}</dd>"
             "<dt>steps</dt><dd>{} committed, {} failed</dd><dt>norm</dt><dd>{}</dd><dt>threshold</dt><dd>{}</dd>"
             "<dt>data path</dt><dd>{}</dd><dt>plan</dt><dd>{} tensors in {} buckets "
             "{}</dd><dt>uid</dt><dd>{}</dd></dl>\n",
             escaped(job.job),
             escaped(job.state),
             job.reason.empty() ? "" : ": ",
             escaped(job.reason),
             job.last_step < 0 ? "none" : std::to_string(job.last_step),
             job.epoch,
             job.attempt,
             commit,
             job.steps_committed,
             job.steps_failed,
             number(job.norm),
             threshold_text(job.threshold),
             escaped(job.data_path) + (job.partial_sums ? ", partial sums in " + escaped(*job.partial_sums) : ""),
             job.tensors,
             job.buckets,
             escaped(job.plan_digest),
             job.uid
         ) +
         clip_list(job.clip) + ranks_table(job) + "</section>\n";
}

}  // namespace

std::string human_seconds(double seconds) {
  if (seconds < 10) {
    return fmt::format("{:.1f} s", seconds);
  }
  const auto whole = static_cast<std::int64_t>(seconds);
  if (whole < 120) {
    return fmt::format("{} s", whole);
  }
  if (whole < 7200) {
    return fmt::format("{} min {} s", whole / 60, whole % 60);
  }
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::string threshold_text(double threshold) {
  return std::isinf(threshold) ? "no threshold" : fmt::format("{:.6g}", threshold);
}

std::string clip_text(const engine::ClipStatus& policy) {
  std::string text =
      fmt::format("clip group {}, {}{}: ", policy.group, policy.policy, policy.watches ? ", watches" : "");
  if (std::isinf(policy.threshold)) {
    return text + threshold_text(policy.threshold);
  }
  text += fmt::format(
      "{:.3g} % of {} steps clipped, threshold {}",
      100 * policy.clip_rate,
      policy.steps,
      threshold_text(policy.threshold)
  );
  if (policy.threshold_lowest < policy.threshold_highest) {
    text += fmt::format(", {:.6g} to {}", policy.threshold_lowest, threshold_text(policy.threshold_highest));
  }
  return text;
}

std::string render_status_page(const StatusPage& page) {
  std::string body = fmt::format(
      "<h1>gradsyncd {}</h1>\n<p>{}, up {}, incarnation <code>{}</code></p>\n",
      escaped(page.version),
      escaped(page.state),
      human_seconds(page.uptime_s),
      escaped(page.incarnation)
  );
  if (!page.jobs) {
    body +=
        "<p>Jobs are shown over the unix socket, or with a token: run <code>gradsyncd status</code> on this "
        "machine.</p>\n";
  } else if (page.jobs->empty()) {
    body += "<p>No jobs. A trainer appears here when it attaches.</p>\n";
  } else {
    for (const engine::JobStatus& job : *page.jobs) {
      body += job_section(job);
    }
  }
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"2\">"
      "<meta name=\"viewport\" content=\"width=device-width\"><title>gradsyncd</title><style>{}</style></head>\n"
      "<body>\n{}</body></html>\n",
      kStyle,
      body
  );
}

}  // namespace gradsync::app
