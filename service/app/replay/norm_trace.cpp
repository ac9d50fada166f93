#include "app/replay/norm_trace.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace gradsync::app {

namespace {

using Json = nlohmann::ordered_json;

Error bad_line(std::size_t line, std::string what) {
  return invalid_params(
      fmt::format("line {}", line),
      std::move(what),
      "a trace has one JSON object per line, with a norm, as JsonlTracker of the client writes it"
  );
}

std::optional<double> number_in(const Json& value) {
  if (value.is_number()) {
    return value.get<double>();
  }
  if (value == "NaN") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (value == "Infinity" || value == "-Infinity") {
    return (value == "Infinity" ? 1 : -1) * std::numeric_limits<double>::infinity();
  }
  return std::nullopt;
}

/// Finds the norm in a line; nullptr: it has none.
const Json* norm_in(const Json& line, const std::string& key, const std::string& group) {
  if (!group.empty()) {
    const auto groups = line.find("groups");
    if (groups == line.end() || !groups->is_array()) {
      return nullptr;
    }
    for (const Json& entry : *groups) {
      if (entry.is_object() && entry.value("name", Json()) == group) {
        return norm_in(entry, key, "");
      }
    }
    return nullptr;
  }
  auto found = key.empty() ? line.find("norm") : line.find(key);
  if (found == line.end() && key.empty()) {
    found = line.find("grad_norm");
  }
  return found == line.end() ? nullptr : &*found;
}

Result<RecordedNorm> recorded(const Json& line, const Json& value, std::size_t number, std::size_t before) {
  const std::optional<double> norm = number_in(value);
  if (!norm || *norm < 0) {
    return bad_line(number, fmt::format("the norm is {}, a number >= 0 is expected", value.dump()));
  }
  RecordedNorm entry{static_cast<std::int64_t>(before), *norm};
  if (const auto step = line.find("step"); step != line.end() && step->is_number_integer()) {
    entry.step = step->get<std::int64_t>();
  }
  return entry;
}

}  // namespace

Result<NormTrace> read_norm_trace(std::istream& in, const std::string& key, const std::string& group) {
  NormTrace trace;
  std::string text;
  for (std::size_t number = 1; std::getline(in, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    const Json line = Json::parse(text, nullptr, false);
    if (!line.is_object()) {
      return bad_line(number, line.is_discarded() ? "it is not JSON" : "it is not a JSON object");
    }
    const Json* value = norm_in(line, key, group);
    if (value == nullptr) {
      ++trace.other_lines;
      continue;
    }
    const Result<RecordedNorm> entry = recorded(line, *value, number, trace.norms.size());
    if (!entry) {
      return entry.error();
    }
    trace.norms.push_back(*entry);
  }
  const auto finite = [](const RecordedNorm& entry) { return std::isfinite(entry.norm); };
  if (std::none_of(trace.norms.begin(), trace.norms.end(), finite)) {
    return invalid_params(
        "trace",
        fmt::format("{} norms and {} other lines, and no norm is finite", trace.norms.size(), trace.other_lines),
        key.empty() && group.empty() ? "name the key of the norm with --key, the clip group of a report with --group"
                                     : "look at the names of keys and groups in the file"
    );
  }
  return trace;
}

}  // namespace gradsync::app
