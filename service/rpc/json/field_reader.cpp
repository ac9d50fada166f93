#include "rpc/json/field_reader.hpp"

#include "base/text/text.hpp"

#include <fmt/format.h>

namespace gradsync::rpc {

namespace {

constexpr std::size_t kLongestGuess = 64;  // an edit distance costs the product of the lengths

}  // namespace

std::string FieldReader::path_text() const {
  std::string text;
  for (const PathStep& step : path_) {
    if (step.field.empty()) {
      text += fmt::format("[{}]", step.index);
    } else {
      text += text.empty() ? std::string(step.field) : fmt::format(".{}", step.field);
    }
  }
  return text;
}

bool FieldReader::fail(std::string message, std::string hint) {
  if (!failed_) {
    failed_ = true;
    const std::string path = path_text();
    error_ = invalid_params(path, (path.empty() ? std::string("params") : path) + " " + message, std::move(hint));
  }
  return false;
}

bool FieldReader::wrong_type(Value found, std::string_view expected) {
  return fail(fmt::format("is {}; expected {}", found.describe(), expected));
}

bool FieldReader::too_long(Value integer) {
  return fail(fmt::format("is {}; expected a number that fits 64 bits", integer.describe()));
}

bool FieldReader::out_of_range(const std::string& found, std::string_view unit, Bounds bounds) {
  constexpr Bounds kNone;
  if (bounds.most == kNone.most) {
    return fail(fmt::format("is {}{}; expected at least {}", found, unit, bounds.least));
  }
  if (bounds.least == kNone.least) {
    return fail(fmt::format("is {}{}; expected at most {}", found, unit, bounds.most));
  }
  return fail(fmt::format("is {}{}; expected {} to {}", found, unit, bounds.least, bounds.most));
}

bool FieldReader::wrong_count(std::int64_t items, Bounds bounds) {
  return out_of_range(fmt::format("a list of {}", items), " items", bounds);
}

bool FieldReader::missing(std::string_view field) {
  const Step step(*this, field);
  return fail("is missing");
}

bool FieldReader::unknown(std::string_view field, const std::vector<std::string>& known) {
  if (field.size() > kLongestGuess) {
    return fail(fmt::format("has an unknown field of {} bytes", field.size()));
  }
  const std::string nearest = nearest_name(field, known);
  const Step step(*this, field.empty() ? std::string_view("\"\"") : field);
  return fail(
      "is not a known field",
      nearest.empty() ? "known: " + enumerate_names(known) : fmt::format("did you mean \"{}\"?", nearest)
  );
}

}  // namespace gradsync::rpc
