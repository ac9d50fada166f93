#include "rpc/wire/result_size.hpp"

#include <algorithm>
#include <utility>

namespace gradsync::rpc {

namespace {

/// The size that most reports fit into, so that writing one allocates once.
std::size_t about_bytes(const engine::StepReport& report) {
  constexpr std::size_t kReport = 1024;
  constexpr std::size_t kNamed = 128;
  constexpr std::size_t kIndex = 8;
  return kReport + kNamed * (report.groups.size() + report.layers.size() + report.nonfinite.size()) +
         kIndex * (report.absent.size() + report.stable_buckets.size());
}

/// The text has more: the names alone.
std::size_t least_bytes(const engine::StepReport& report) {
  std::size_t bytes = 0;
  for (const engine::LayerReport& layer : report.layers) {
    bytes += layer.name.str().size();
  }
  return bytes;
}

bool keep_first(auto& findings) {
  const bool more = findings.size() > 1;
  findings.resize(std::min<std::size_t>(findings.size(), 1));
  return more;
}

bool leave_out(auto& list) {
  const bool some = !list.empty();
  list.clear();
  return some;
}

bool leave_out_watchers(engine::StepReport& report) {
  bool some = false;
  for (engine::GroupReport& group : report.groups) {
    some = leave_out(group.watch) || some;
  }
  return some;
}

bool leave_out_absent(engine::StepReport& report) {
  const bool rows = leave_out(report.absent);
  return leave_out(report.absent_names) || rows;
}

/// The parts that are cut from a report until it fits; the first can be missed most. `cut`: true where there was
/// something to cut.
struct Cut {
  const char* list;
  bool (*cut)(engine::StepReport& report);
};

constexpr Cut kCuts[] = {
    {"layers", [](engine::StepReport& report) { return leave_out(report.layers); }},
    {"absent", leave_out_absent},
    {"watch", leave_out_watchers},
    {"missing", [](engine::StepReport& report) { return keep_first(report.missing); }},
    {"divergence", [](engine::StepReport& report) { return keep_first(report.divergence); }},
    {"nonfinite", [](engine::StepReport& report) { return keep_first(report.nonfinite); }},
};

/// A report that is not cut is written like the answer with it.
std::string render_report(const engine::StepReport& report, std::size_t room) {
  std::string text;
  if (least_bytes(report) <= room) {
    text.reserve(about_bytes(report));
    text = to_json(report, std::move(text));
    if (text.size() <= room) {
      return text;
    }
  }
  ReportAnswer shorter{report, std::vector<std::string>{}};
  for (const Cut& cut : kCuts) {
    if (!cut.cut(shorter.report)) {
      continue;
    }
    shorter.truncated->push_back(cut.list);
    text = to_json(shorter);
    if (text.size() <= room) {
      break;
    }
  }
  return text;
}

}  // namespace

std::string render(const ReportAnswer& answer, std::size_t room) { return render_report(answer.report, room); }

std::string render(const StatsAnswer& answer, std::size_t room) {
  std::vector<std::string> newest_first;
  std::size_t size = sizeof(R"({"reports":[]})");
  for (auto report = answer.reports.rbegin(); report != answer.reports.rend(); ++report) {
    newest_first.push_back(render_report(**report, room > 64 ? room - 64 : 0));
    size += newest_first.back().size() + 1;
    if (size > room) {
      newest_first.pop_back();
      break;
    }
  }
  JsonWriter writer;
  writer.begin_object();
  writer.key("reports");
  writer.begin_array();
  for (auto text = newest_first.rbegin(); text != newest_first.rend(); ++text) {
    writer.raw(*text);
  }
  writer.end_array();
  writer.end_object();
  return writer.take();
}

std::string render(const StatusAnswer& answer, std::size_t room) {
  std::string text = to_json(answer);
  if (text.size() <= room) {
    return text;
  }
  StatusAnswer shorter = answer;
  while (text.size() > room && !shorter.jobs.empty()) {
    const std::size_t jobs = shorter.jobs.size();
    shorter.jobs.resize(std::min(jobs - 1, jobs * room / text.size()));  // about those that fit
    shorter.jobs_left_out += static_cast<std::int64_t>(jobs - shorter.jobs.size());
    text = to_json(shorter);
  }
  return text;
}

std::string render(const DeclareAnswer& answer, std::size_t room) {
  std::string text = to_json(answer);
  if (text.size() <= room || !answer.buckets) {
    return text;
  }
  DeclareAnswer shorter = answer;
  for (DeclaredBucket& bucket : *shorter.buckets) {
    bucket.tensors.reset();
  }
  return to_json(shorter);
}

engine::EncodeReport report_encoder(std::size_t message_bytes) {
  return [message_bytes](const engine::StepReport& report, std::size_t room) {
    return render_report(report, std::min(room, message_bytes));
  };
}

}  // namespace gradsync::rpc
