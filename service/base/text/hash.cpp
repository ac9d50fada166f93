#include "base/text/hash.hpp"

#include "base/assert.hpp"

#include <xxhash.h>

#include <sys/random.h>
#include <system_error>

#include <array>
#include <charconv>

namespace gradsync {

namespace {

constexpr char kHex[] = "0123456789abcdef";

using Secret = std::array<unsigned char, XXH3_SECRET_SIZE_MIN + 56>;  // as long as the library's own

Secret random_secret() {
  Secret secret{};
  GRADSYNC_ASSERT(
      ::getrandom(secret.data(), secret.size(), 0) == static_cast<ssize_t>(secret.size()),
      "getrandom gives short reads never below 256 bytes"
  );
  return secret;
}

}  // namespace

std::uint64_t hash64(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::size_t KeyedHash::operator()(std::string_view text) const noexcept {
  static const Secret secret = random_secret();
  return XXH3_64bits_withSecret(text.data(), text.size(), secret.data(), secret.size());
}

Hash128::Hash128() : state_(XXH3_createState()) {
  GRADSYNC_ASSERT(state_ != nullptr, "a few hundred bytes are there");
  XXH3_128bits_reset(state_.get());
}

void Hash128::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

void Hash128::add(std::string_view bytes) { XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()); }

std::string Hash128::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return hex64(hash.high64) + hex64(hash.low64);
}

std::string hex64(std::uint64_t value) {
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i) {
    text[static_cast<std::size_t>(i)] = kHex[value & 0xF];
    value >>= 4;
  }
  return text;
}

std::string digest(std::string_view bytes) { return hex64(hash64(bytes)); }

std::string random_hex(std::size_t bytes) {
  std::string raw(bytes, '\0');
  GRADSYNC_ASSERT(
      ::getrandom(raw.data(), raw.size(), 0) == static_cast<ssize_t>(raw.size()),
      "getrandom gives short reads never below 256 bytes"
  );
  return hex_of(raw);
}

std::string hex_of(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text.push_back(kHex[value >> 4]);
    text.push_back(kHex[value & 0xF]);
  }
  return text;
}

std::optional<std::string> bytes_of_hex(std::string_view digits) {
  if (digits.size() % 2 != 0) {
    return std::nullopt;
  }
  std::string bytes(digits.size() / 2, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char* const begin = digits.data() + 2 * i;
    unsigned char value = 0;
    if (const auto [end, error] = std::from_chars(begin, begin + 2, value, 16);
        end != begin + 2 || error != std::errc{}) {
      return std::nullopt;
    }
    bytes[i] = static_cast<char>(value);
  }
  return bytes;
}

}  // namespace gradsync
