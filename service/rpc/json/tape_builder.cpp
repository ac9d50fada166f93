#include "rpc/json/tape_builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace gradsync::rpc {

namespace {

constexpr std::size_t kFewKeys = 24;

/// Memory of a longer message (pages of a declaration) is given back when the next one comes.
constexpr std::size_t kKeptText = 64U << 10;

std::string cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) {
    return std::string(text);
  }
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) {
    --most;
  }
  return std::string(text.substr(0, most)) + "…";
}

/// The nearest double: infinite above the range of doubles, 0 below it.
double read_double(std::string_view text) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem == std::errc::result_out_of_range) {  // it does not say on which side
    return std::strtod(std::string(text).c_str(), nullptr);
  }
  return value;
}

}  // namespace

void TapeBuilder::begin(std::size_t text_size) {
  if (tape_.text_.capacity() > kKeptText) {
    tape_ = {};
    std::string().swap(tape_.text_);  // a moved-to string keeps its memory
    open_.clear();
  }
  tape_.tokens_.clear();
  tape_.text_.clear();
  tape_.tokens_.reserve(text_size / 8 + 8);
  tape_.text_.reserve(text_size / 2 + 8);
  text_begin_ = 0;
  open_count_ = 0;
  refused_ = false;
}

bool TapeBuilder::other_number(std::string_view text) {
  if (text.find_first_of(".eE") == std::string_view::npos) {  // as a double it would lose its low digits
    text_part(text);
    push(TokenType::LongInteger).text = take_text();
    return true;
  }
  const double value = read_double(text);
  if (!std::isfinite(value)) {
    return refuse(fmt::format("the number {} does not fit a double", cut(text, 60)));
  }
  push(TokenType::Double).real = value;
  return true;
}

void TapeBuilder::key_end() {
  const TextSlice slice = take_text();
  open_[open_count_ - 1].keys.push_back(slice);
  push(TokenType::Key).text = slice;
}

// Sorted, so that no choice of keys makes it slow. Few keys, as every message has, are compared one by one.
std::optional<std::string_view> TapeBuilder::repeated(std::vector<TextSlice>& keys) const {
  if (keys.size() <= kFewKeys) {
    for (auto key = keys.begin(); key != keys.end(); ++key) {
      for (auto other = keys.begin(); other != key; ++other) {
        if (tape_.text(*other) == tape_.text(*key)) {
          return tape_.text(*key);
        }
      }
    }
    return std::nullopt;
  }
  std::sort(keys.begin(), keys.end(), [this](const TextSlice& a, const TextSlice& b) {
    return tape_.text(a) < tape_.text(b);
  });
  const auto twice = std::adjacent_find(keys.begin(), keys.end(), [this](const TextSlice& a, const TextSlice& b) {
    return tape_.text(a) == tape_.text(b);
  });
  return twice == keys.end() ? std::nullopt : std::optional(tape_.text(*twice));
}

bool TapeBuilder::open(TokenType type) {
  if (open_count_ == depth_) {
    return refuse(fmt::format("nested deeper than {} levels", depth_));
  }
  if (open_count_ == open_.size()) {
    open_.emplace_back();
  }
  OpenContainer& container = open_[open_count_++];
  container.index = static_cast<std::uint32_t>(tape_.tokens_.size());
  container.keys.clear();
  push(type);
  return true;
}

bool TapeBuilder::close() {
  OpenContainer& container = open_[--open_count_];
  tape_.tokens_[container.index].end = static_cast<std::uint32_t>(tape_.tokens_.size());
  if (const std::optional<std::string_view> key = repeated(container.keys)) {
    return refuse(fmt::format("the key \"{}\" appears twice in one object", cut(*key, 60)), "give each field once");
  }
  return true;
}

bool TapeBuilder::refuse(std::string message, std::string hint) {
  refusal_ = make_error(ErrorCode::ParseError, std::move(message), std::move(hint));
  refused_ = true;
  return false;
}

}  // namespace gradsync::rpc
