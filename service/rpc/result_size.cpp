#include "rpc/result_size.hpp"

#include <algorithm>

namespace gradsync::rpc {

namespace {

/// What most reports have room in, so that writing one allocates once.
std::size_t about_bytes(const engine::StepReport& report) {
  constexpr std::size_t kReport = 1024;
  constexpr std::size_t kNamed = 128;
  constexpr std::size_t kIndex = 8;
  return kReport + kNamed * (report.groups.size() + report.layers.size() + report.nonfinite.size()) +
         kIndex * (report.absent.size() + report.stable_buckets.size());
}

/// A report that is not cut is written like the answer with it.
std::string render_report(const engine::StepReport& report, std::size_t room) {
  std::string text = to_json(report, about_bytes(report));
  if (text.size() <= room) {
    return text;
  }
  ReportAnswer shorter{report, std::vector<std::string>{"layers"}};
  shorter.report.layers.clear();
  text = to_json(shorter);
  if (text.size() <= room) {
    return text;
  }
  shorter.truncated->push_back("absent");
  shorter.report.absent.clear();
  shorter.report.absent_names.clear();
  return to_json(shorter);
}

}  // namespace

std::string render(const ReportAnswer& answer, std::size_t room) { return render_report(answer.report, room); }

std::string render(const StatsAnswer& answer, std::size_t room) {
  std::vector<std::string> newest_first;
  std::size_t size = sizeof(R"({"reports":[]})");
  for (auto report = answer.reports.rbegin(); report != answer.reports.rend(); ++report) {
    newest_first.push_back(render_report(*report, room > 64 ? room - 64 : 0));
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
