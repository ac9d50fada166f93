#pragma once
// One line of JSON, built field by field in the order given, and the summary of a sample that goes into it.

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::experiments {

class JsonLine {
 public:
  JsonLine& add(std::string_view key, std::string_view value) { return raw(key, quoted(value)); }

  JsonLine& add(std::string_view key, const char* value) { return add(key, std::string_view(value)); }

  JsonLine& add(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }

  JsonLine& add(std::string_view key, std::floating_point auto value) { return raw(key, number(value)); }

  JsonLine& add(std::string_view key, std::integral auto value) { return raw(key, std::to_string(value)); }

  JsonLine& add(std::string_view key, const JsonLine& value) { return raw(key, value.text()); }

  JsonLine& add(std::string_view key, const std::vector<double>& values) {
    std::string list = "[";
    for (const double value : values) {
      list += (list.size() > 1 ? ", " : "") + number(value);
    }
    return raw(key, list + "]");
  }

  [[nodiscard]] std::string text() const { return "{" + body_ + "}"; }

  [[nodiscard]] bool empty() const { return body_.empty(); }

  /// The fields of `other` behind these.
  JsonLine& append(const JsonLine& other) {
    if (!other.body_.empty()) {
      body_ += (body_.empty() ? "" : ", ") + other.body_;
    }
    return *this;
  }

 private:
  JsonLine& raw(std::string_view key, const std::string& value) {
    body_ += (body_.empty() ? "" : ", ") + quoted(key) + ": " + value;
    return *this;
  }

  // JSON has no word for what is not finite.
  static std::string number(double value) {
    if (!std::isfinite(value)) {
      return std::isnan(value) ? "\"nan\"" : (value > 0 ? "\"inf\"" : "\"-inf\"");
    }
    char text[40];
    (void)std::snprintf(text, sizeof(text), "%.6g", value);
    return text;
  }

  static std::string quoted(std::string_view value) {
    std::string text = "\"";
    for (const char letter : value) {
      if (letter == '"' || letter == '\\') {
        text += {'\\', letter};
      } else if (static_cast<unsigned char>(letter) < 0x20) {
        char escaped[8];
        (void)std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(letter));
        text += escaped;
      } else {
        text += letter;
      }
    }
    return text + "\"";
  }

  std::string body_;
};

/// {n, min, median, p90, p99, max} of a sample.
inline JsonLine summary(std::vector<double> values) {
  JsonLine line;
  line.add("n", values.size());
  if (values.empty()) {
    return line;
  }
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return line.add("min", values.front())
      .add("median", at(0.5))
      .add("p90", at(0.9))
      .add("p99", at(0.99))
      .add("max", values.back());
}

inline double median(std::vector<double> values) {
  if (values.empty()) {
    return std::nan("");
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace gradsync::experiments
