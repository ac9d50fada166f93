#include "base/text/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace gradsync {

namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string enumerate_names(std::span<const std::string> names, std::size_t most) {
  const std::size_t shown = std::min(most, names.size());
  if (shown == 0 && !names.empty()) {
    return fmt::format("{} in all", names.size());
  }
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) {
    text += fmt::format(" and {} more", names.size() - shown);
  }
  return text;
}

std::string enumerate_ranks(std::span<const std::int64_t> first, std::int64_t count) {
  const std::int64_t more = count - static_cast<std::int64_t>(first.size());
  const std::string text = fmt::format("rank{} {}", count == 1 ? "" : "s", fmt::join(first, ", "));
  return more > 0 ? fmt::format("{} and {} more", text, more) : text;
}

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text.data()[at + i]); };
  const unsigned char lead = byte(0);
  const std::size_t length = lead < 0x80                   ? 1
                             : lead >= 0xC2 && lead < 0xE0 ? 2
                             : lead >= 0xE0 && lead < 0xF0 ? 3
                             : lead >= 0xF0 && lead < 0xF5 ? 4
                                                           : 0;
  if (length == 0 || length > text.size() - at) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) {
      return 0;
    }
  }
  const bool outside = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) >= 0xA0) ||
                       (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) >= 0x90);
  return outside ? 0 : length;
}

bool ends_within_character(std::string_view text) {
  for (std::size_t at = text.size(); at-- > 0;) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) {
      return utf8_length(text, at) == 0;
    }
  }
  return false;
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) {
    return fmt::format("{} byte{}", bytes, bytes == 1 ? "" : "s");
  }
  double value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* candidate : kUnits) {
    value /= 1024;
    unit = candidate;
    if (value < 1023.95) {  // what rounds to 1024.0 belongs to the next unit
      break;
    }
  }
  return fmt::format("{:.1f} {}", value, unit);
}

}  // namespace gradsync
