#include "rpc/peer/peer_fields.hpp"

#include "base/text/hash.hpp"
#include "base/text/text.hpp"
#include "rpc/json/plain_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <limits>
#include <span>

namespace gradsync::rpc {

namespace {

constexpr std::size_t kWordDigits = 16;

bool are_hex_digits(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool read_hex(FieldReader& reader, Value value, std::size_t digits) {
  if (value.is(TokenType::String) && value.text().size() == digits && are_hex_digits(value.text())) {
    return true;
  }
  const std::string expected = fmt::format("{} lower-case hex digits", digits);
  if (!value.is(TokenType::String) || value.text().size() == digits) {
    return reader.wrong_type(value, expected);
  }
  return reader.fail(
      fmt::format("is {}, a string of {} bytes; expected {}", value.describe(), value.text().size(), expected)
  );
}

std::uint64_t word_of_hex(std::string_view digits) {
  std::uint64_t word = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), word, 16);
  return word;
}

template <std::size_t Count>
bool read_hex_words(FieldReader& reader, Value value, std::array<std::uint64_t, Count>& words) {
  if (!read_hex(reader, value, Count * kWordDigits)) {
    return false;
  }
  for (std::size_t i = 0; i < Count; ++i) {
    words[i] = word_of_hex(value.text().substr(i * kWordDigits, kWordDigits));
  }
  return true;
}

void write_hex_words(JsonWriter& writer, std::span<const std::uint64_t> words) {
  std::string digits;
  digits.reserve(words.size() * kWordDigits);
  for (const std::uint64_t word : words) {
    for (std::size_t digit = kWordDigits; digit-- > 0;) {
      digits += "0123456789abcdef"[word >> (4 * digit) & 0xFU];
    }
  }
  writer.value(std::string_view(digits));
}

/// `read_item(item)` reads one item; the path is at it.
template <typename ReadItem>
bool read_items(FieldReader& reader, Value value, Bounds bounds, ReadItem read_item) {
  if (!value.is(TokenType::Array)) {
    return reader.wrong_type(value, "a list");
  }
  std::size_t index = 0;
  return reader.has_count(value, bounds) && value.each_item([&](Value item) {
    const FieldReader::Step step(reader, index++);
    return read_item(item);
  });
}

/// Reads spans that ascend and lie apart, of numbers below `end`; `take(first, count)` gets each.
template <typename Take>
bool read_spans(FieldReader& reader, Value value, std::int64_t end, Take take) {
  std::int64_t least = 0;
  return read_items(reader, value, {}, [&](Value item) {
    std::pair<std::int64_t, std::int64_t> span;
    if (!Codec<std::pair<std::int64_t, std::int64_t>>::read(reader, item, span, {})) {
      return false;
    }
    const auto [first, count] = span;
    if (count < 1 || first >= end || count > end - first) {
      return reader.fail(fmt::format(
          "is [{}, {}]; expected a first and a count of at least 1 that end at {} or before", first, count, end - 1
      ));
    }
    if (first < least) {
      return reader.fail(fmt::format(
          "begins at {}, and the span before it ends at {}; expected spans that ascend and lie apart", first, least - 1
      ));
    }
    least = first + count;
    take(first, count);
    return true;
  });
}

template <typename Spans>
void write_spans(JsonWriter& writer, const Spans& spans) {
  writer.begin_array();
  for (const auto& [first, count] : spans) {
    writer.begin_array();
    writer.value(static_cast<std::int64_t>(first));
    writer.value(static_cast<std::int64_t>(count));
    writer.end_array();
  }
  writer.end_array();
}

}  // namespace

bool HexWord::read(FieldReader& reader, Value value, std::uint64_t& out, Bounds bounds) {
  std::array<std::uint64_t, 1> word{};
  if (!read_hex_words(reader, value, word)) {
    return false;
  }
  out = word.front();
  return out != 0 || bounds.least <= 0 || reader.wrong_type(value, "the word of an attempt, which is not 0");
}

void HexWord::write(JsonWriter& writer, const std::uint64_t& value) { write_hex_words(writer, std::span(&value, 1)); }

bool HexWords::read(FieldReader& reader, Value value, std::vector<std::uint64_t>& out, Bounds bounds) {
  out.clear();
  return read_items(reader, value, bounds, [&](Value item) {
    return HexWord::read(reader, item, out.emplace_back(), {});
  });
}

void HexWords::write(JsonWriter& writer, const std::vector<std::uint64_t>& value) {
  writer.begin_array();
  for (const std::uint64_t& word : value) {
    HexWord::write(writer, word);
  }
  writer.end_array();
}

bool PortNumber::read(FieldReader& reader, Value value, std::uint16_t& out, Bounds) {
  std::uint32_t port = 0;
  const bool ok = Codec<std::uint32_t>::read(reader, value, port, {1, 65'535});
  out = static_cast<std::uint16_t>(port);
  return ok;
}

void PortNumber::write(JsonWriter& writer, const std::uint16_t& value) {
  writer.value(static_cast<std::uint64_t>(value));
}

bool VersionNumber::read(FieldReader& reader, Value value, int& out, Bounds) {
  std::uint32_t version = 0;
  const bool ok = Codec<std::uint32_t>::read(reader, value, version, {1, std::numeric_limits<int>::max()});
  out = static_cast<int>(version);
  return ok;
}

void VersionNumber::write(JsonWriter& writer, const int& value) { writer.value(static_cast<std::uint64_t>(value)); }

bool HexDigest::read(FieldReader& reader, Value value, std::string& out, Bounds) {
  const bool ok = read_hex(reader, value, kWordDigits);
  out = ok ? value.text() : std::string_view{};
  return ok;
}

void HexDigest::write(JsonWriter& writer, const std::string& value) { writer.value(std::string_view(value)); }

bool HexLongDigest::read(FieldReader& reader, Value value, std::string& out, Bounds) {
  const bool ok = read_hex(reader, value, 2 * kWordDigits);
  out = ok ? value.text() : std::string_view{};
  return ok;
}

void HexLongDigest::write(JsonWriter& writer, const std::string& value) { writer.value(std::string_view(value)); }

bool HexLongDigests::read(FieldReader& reader, Value value, std::vector<std::string>& out, Bounds bounds) {
  out.clear();
  return read_items(reader, value, bounds, [&](Value item) {
    return HexLongDigest::read(reader, item, out.emplace_back(), {});
  });
}

void HexLongDigests::write(JsonWriter& writer, const std::vector<std::string>& value) {
  Codec<std::vector<std::string>>::write(writer, value);
}

bool HexBytes::read(FieldReader& reader, Value value, std::string& out, Bounds bounds) {
  const std::string expected =
      fmt::format("two lower-case hex digits for each of {} to {} bytes", bounds.least, bounds.most);
  if (!value.is(TokenType::String)) {
    return reader.wrong_type(value, expected);
  }
  const std::size_t digits = value.text().size();
  const auto bytes = static_cast<std::int64_t>(digits / 2);
  if (digits % 2 != 0 || bytes < bounds.least || bytes > bounds.most) {
    return reader.fail(fmt::format("is a string of {} digits; expected {}", digits, expected));
  }
  if (!are_hex_digits(value.text())) {
    return reader.wrong_type(value, expected);
  }
  out = *bytes_of_hex(value.text());
  return true;
}

void HexBytes::write(JsonWriter& writer, const std::string& value) { writer.value(std::string_view(hex_of(value))); }

bool HexUniqueId::read(FieldReader& reader, Value value, device::NcclUniqueId& out, Bounds) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(out.bytes));
  std::string bytes;
  if (!HexBytes::read(reader, value, bytes, {kBytes, kBytes})) {
    return false;
  }
  std::ranges::copy(bytes, out.bytes.begin());
  return true;
}

void HexUniqueId::write(JsonWriter& writer, const device::NcclUniqueId& value) {
  HexBytes::write(writer, std::string(value.bytes.begin(), value.bytes.end()));
}

bool RankSpans::read(FieldReader& reader, Value value, std::vector<engine::RankSpan>& out, Bounds) {
  out.clear();
  return read_spans(reader, value, kPeerRanks, [&](std::int64_t first, std::int64_t count) {
    out.emplace_back(first, count);
  });
}

void RankSpans::write(JsonWriter& writer, const std::vector<engine::RankSpan>& value) { write_spans(writer, value); }

bool RanksAsSpans::read(FieldReader& reader, Value value, std::vector<std::int64_t>& out, Bounds) {
  out.clear();
  return read_spans(reader, value, kPeerRanks, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t rank = first; rank < first + count; ++rank) {
      out.push_back(rank);
    }
  });
}

void RanksAsSpans::write(JsonWriter& writer, const std::vector<std::int64_t>& value) {
  std::vector<std::int64_t> ranks = value;
  std::sort(ranks.begin(), ranks.end());
  std::vector<engine::RankSpan> spans;
  for (const std::int64_t rank : ranks) {
    if (spans.empty() || spans.back().first + spans.back().second < rank) {
      spans.emplace_back(rank, 1);
    } else if (spans.back().first + spans.back().second == rank) {
      ++spans.back().second;
    }
  }
  write_spans(writer, spans);
}

bool RankList::read(FieldReader& reader, Value value, std::vector<std::int64_t>& out, Bounds) {
  out.clear();
  return read_items(reader, value, kRankCount, [&](Value item) {
    return Codec<std::int64_t>::read(reader, item, out.emplace_back(), kRankNumber);
  });
}

void RankList::write(JsonWriter& writer, const std::vector<std::int64_t>& value) {
  Codec<std::vector<std::int64_t>>::write(writer, value);
}

bool RankCounts::read(FieldReader& reader, Value value, RankCountList& out, Bounds) {
  out.clear();
  return read_items(reader, value, kRankCount, [&](Value item) {
    if (!Codec<RankCountList::value_type>::read(reader, item, out.emplace_back(), {})) {
      return false;
    }
    const std::int64_t rank = out.back().first;
    const FieldReader::Step step(reader, std::size_t{0});
    return rank <= kRankNumber.most || reader.out_of_range(std::to_string(rank), "", kRankNumber);
  });
}

void RankCounts::write(JsonWriter& writer, const RankCountList& value) { Codec<RankCountList>::write(writer, value); }

bool TensorSpanList::read(FieldReader& reader, Value value, engine::TensorSpans& out, Bounds) {
  out.clear();
  return read_spans(reader, value, kPeerTensors, [&](std::int64_t first, std::int64_t count) {
    out.emplace_back(static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count));
  });
}

void TensorSpanList::write(JsonWriter& writer, const engine::TensorSpans& value) { write_spans(writer, value); }

bool Fingerprints::read(FieldReader& reader, Value value, std::vector<engine::WeightFingerprints>& out, Bounds bounds) {
  constexpr Bounds kTensors{1, kPeerTensors};
  out.clear();
  return read_items(reader, value, bounds, [&](Value list) {
    engine::WeightFingerprints& fingerprints = out.emplace_back();
    return read_items(reader, list, kTensors, [&](Value item) {
      return Codec<std::string>::read(reader, item, fingerprints.emplace_back(), {0, 64});
    });
  });
}

void Fingerprints::write(JsonWriter& writer, const std::vector<engine::WeightFingerprints>& value) {
  Codec<std::vector<engine::WeightFingerprints>>::write(writer, value);
}

std::string tidy_text(std::string_view text, std::size_t most) {
  constexpr std::string_view kCut = "…";
  std::string tidy;
  for (std::size_t at = 0; at < text.size() && tidy.size() <= most;) {
    const std::size_t length = utf8_length(text, at);
    const std::string_view character = length == 0 ? std::string_view("\uFFFD") : text.substr(at, length);
    tidy += find_control_character(character) ? std::string_view(" ") : character;
    at += std::max<std::size_t>(length, 1);
  }
  if (tidy.size() > most) {
    std::size_t end = most - kCut.size();
    while (end > 0 && (static_cast<unsigned char>(tidy[end]) & 0xC0U) == 0x80U) {
      --end;
    }
    tidy.resize(end);
    tidy += kCut;
  }
  return tidy;
}

bool NamedTensors::read(FieldReader& reader, Value value, std::vector<std::string>& out, Bounds) {
  out.clear();
  return read_items(reader, value, {0, kNamedTensors}, [&](Value item) {
    return TidyText<plan::kMaxNameBytes>::read(reader, item, out.emplace_back(), {});
  });
}

void NamedTensors::write(JsonWriter& writer, const std::vector<std::string>& names) {
  writer.begin_array();
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), kNamedTensors); ++i) {
    TidyText<plan::kMaxNameBytes>::write(writer, names[i]);
  }
  writer.end_array();
}

bool Codec<device::TensorSum>::read(FieldReader& reader, Value value, device::TensorSum& out, Bounds) {
  std::array<std::uint64_t, 6> words{};
  if (!read_hex_words(reader, value, words)) {
    return false;
  }
  out.power_sum = {std::bit_cast<double>(words[0]), std::bit_cast<double>(words[1])};
  out.scale = std::bit_cast<double>(words[2]);
  out.maximum = std::bit_cast<double>(words[3]);
  out.nonfinite = words[4];
  out.nan = words[5];
  return true;
}

void Codec<device::TensorSum>::write(JsonWriter& writer, const device::TensorSum& sum) {
  const std::array<std::uint64_t, 6> words{
      std::bit_cast<std::uint64_t>(sum.power_sum.high),
      std::bit_cast<std::uint64_t>(sum.power_sum.low),
      std::bit_cast<std::uint64_t>(sum.scale),
      std::bit_cast<std::uint64_t>(sum.maximum),
      sum.nonfinite,
      sum.nan};
  write_hex_words(writer, words);
}

bool Codec<device::StatsRow>::read(FieldReader& reader, Value value, device::StatsRow& out, Bounds) {
  std::array<std::uint64_t, 8> words{};
  if (!read_hex_words(reader, value, words)) {
    return false;
  }
  out = std::bit_cast<device::StatsRow>(words);
  return true;
}

void Codec<device::StatsRow>::write(JsonWriter& writer, const device::StatsRow& row) {
  write_hex_words(writer, std::bit_cast<std::array<std::uint64_t, 8>>(row));
}

}  // namespace gradsync::rpc
