#pragma once
// XXH3-64 over bytes, as 16 hex digits. For digests that people and peers compare; not for secrets.

#include <cstdint>
#include <string>
#include <string_view>

namespace gradsync {

[[nodiscard]] std::uint64_t hash64(std::string_view bytes);
[[nodiscard]] std::string hex64(std::uint64_t value);
[[nodiscard]] std::string digest(std::string_view bytes);

/// `bytes` random bytes from the kernel, as hex digits. For tokens and incarnations.
[[nodiscard]] std::string random_hex(std::size_t bytes);

}  // namespace gradsync
