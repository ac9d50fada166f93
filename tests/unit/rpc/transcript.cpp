#include "transcript.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>

namespace gradsync::rpc {

namespace {

using Fragments = std::map<std::string, std::vector<Json>>;

std::vector<Json> read_lines(const std::filesystem::path& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  std::string text;
  while (std::getline(file, text)) {
    if (!text.empty()) {
      lines.push_back(Json::parse(text));
    }
  }
  return lines;
}

void append(const Json& line, const std::string& on, const Fragments& fragments, std::vector<Json>& lines) {
  if (!line.contains("include")) {
    Json copy = line;
    if (!copy.contains("on")) {
      copy["on"] = on;
    }
    lines.push_back(std::move(copy));
    return;
  }
  const std::string where = line.value("on", on);
  if (line.contains("set")) {
    lines.push_back(Json{{"set", line["set"]}, {"on", where}});
  }
  for (const Json& included : fragments.at(line["include"])) {
    append(included, where, fragments, lines);
  }
}

bool is_hex(const Json& found, std::size_t digits) {
  if (!found.is_string() || found.get<std::string>().size() != digits) {
    return false;
  }
  const std::string text = found;
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool matches_wildcard(const std::string& wildcard, const Json& found) {
  const bool special = found == "NaN" || found == "Infinity" || found == "-Infinity";
  if (wildcard.starts_with("<has:")) {
    return found.is_string() &&
           found.get<std::string>().find(wildcard.substr(5, wildcard.size() - 6)) != std::string::npos;
  }
  return wildcard == "<any>" || (wildcard == "<int>" && found.is_number_integer()) ||
         (wildcard == "<number>" && (found.is_number() || special)) || (wildcard == "<text>" && found.is_string()) ||
         (wildcard == "<bool>" && found.is_boolean()) || (wildcard == "<list>" && found.is_array()) ||
         (wildcard == "<object>" && found.is_object()) || (wildcard == "<hex16>" && is_hex(found, 16)) ||
         (wildcard == "<hex32>" && is_hex(found, 32));
}

std::string differs(const std::string& path, const Json& pattern, const Json& found) {
  return (path.empty() ? std::string("the message") : path) + ": expected " + pattern.dump() + ", found " +
         found.dump();
}

std::string mismatch_object(const Json& pattern, const Json& found, Variables& variables, const std::string& path) {
  for (const auto& [key, expected] : pattern.items()) {
    if (key == "...") {
      continue;
    }
    if (!found.contains(key)) {
      return path + "." + key + " is missing in " + found.dump();
    }
    if (std::string problem = mismatch(expected, found[key], variables, path + "." + key); !problem.empty()) {
      return problem;
    }
  }
  for (const auto& [key, value] : found.items()) {
    if (!pattern.contains("...") && !pattern.contains(key)) {
      return path + "." + key + " is not expected: " + value.dump();
    }
  }
  return "";
}

}  // namespace

std::vector<Transcript> load_transcripts() {
  const std::filesystem::path folder = std::filesystem::path(GRADSYNC_SOURCE_DIR) / "tests/contract";
  Fragments fragments;
  std::string fragment;
  for (const Json& line : read_lines(folder / "fragments.jsonl")) {
    if (line.contains("fragment")) {
      fragment = line["fragment"];
    } else {
      fragments[fragment].push_back(line);
    }
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".jsonl" && entry.path().filename() != "fragments.jsonl") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Transcript> transcripts;
  for (const auto& file : files) {
    for (const Json& line : read_lines(file)) {
      if (line.contains("name")) {
        transcripts.push_back({line["name"], line.value("needs", std::vector<std::string>{}), {}, file.filename()});
      } else {
        append(line, "a", fragments, transcripts.back().lines);
      }
    }
  }
  return transcripts;
}

Json substitute(const Json& value, const Variables& variables) {
  if (value.is_string()) {
    const std::string text = value;
    if (text.starts_with("$") && variables.contains(text.substr(1))) {
      return variables.at(text.substr(1));
    }
    std::string result = text;
    for (const auto& [name, content] : variables) {
      const std::string marker = "${" + name + "}";
      for (std::size_t at = result.find(marker); at != std::string::npos; at = result.find(marker)) {
        result.replace(at, marker.size(), content.is_string() ? content.get<std::string>() : content.dump());
      }
    }
    return result;
  }
  Json copy = value;
  if (copy.is_structured()) {
    for (Json& child : copy) {
      child = substitute(child, variables);
    }
  }
  return copy;
}

std::string mismatch(const Json& pattern, const Json& found, Variables& variables, const std::string& path) {
  if (pattern.is_string()) {
    const std::string text = pattern;
    if (text.starts_with("$") && !text.starts_with("${")) {
      const auto [at, fresh] = variables.try_emplace(text.substr(1), found);
      return fresh || at->second == found ? "" : differs(path, at->second, found);
    }
    if (text.starts_with("<") && text.ends_with(">")) {
      return matches_wildcard(text, found) ? "" : differs(path, pattern, found);
    }
    return substitute(pattern, variables) == found ? "" : differs(path, substitute(pattern, variables), found);
  }
  if (pattern.is_object() && found.is_object()) {
    return mismatch_object(pattern, found, variables, path);
  }
  if (pattern.is_array() && found.is_array()) {
    if (pattern.size() != found.size()) {
      return differs(path, pattern, found);
    }
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      if (std::string problem = mismatch(pattern[i], found[i], variables, path + "[" + std::to_string(i) + "]");
          !problem.empty()) {
        return problem;
      }
    }
    return "";
  }
  return pattern == found ? "" : differs(path, pattern, found);
}

}  // namespace gradsync::rpc
