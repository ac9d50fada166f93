#pragma once
// Small helpers for messages that people read.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync {

/// The candidate closest to `word` by edit distance, when it is close enough to be a slip; else "".
[[nodiscard]] std::string nearest_name(std::string_view word, std::span<const std::string> candidates);

/// "a, b, c and 17 more".
[[nodiscard]] std::string enumerate_names(std::span<const std::string> names, std::size_t most = 20);

/// Texts name no more ranks than this.
inline constexpr std::size_t kNamedRanks = 20;

/// "rank 3", "ranks 0, 1, 2 and 17 more": the first of `count` ranks.
[[nodiscard]] std::string enumerate_ranks(std::span<const std::int64_t> first, std::int64_t count);

/// "1.5 GiB", "64 bytes".
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);

/// Bytes of the UTF-8 character at `at`; 0 where none begins (stray, cut short, overlong, surrogate, beyond U+10FFFF).
[[nodiscard]] std::size_t utf8_length(std::string_view text, std::size_t at);

/// True where `text` is not UTF-8 only because its last character is cut short.
[[nodiscard]] bool ends_within_character(std::string_view text);

}  // namespace gradsync
