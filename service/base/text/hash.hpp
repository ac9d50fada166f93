#pragma once
// XXH3 over bytes, as hex digits. The digests are compared by people and peers; they keep no secrets.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct XXH3_state_s;  // of xxHash

namespace gradsync {

[[nodiscard]] std::uint64_t hash64(std::string_view bytes);
[[nodiscard]] std::string hex64(std::uint64_t value);
[[nodiscard]] std::string digest(std::string_view bytes);

/// XXH3-128 over bytes that come in parts.
class Hash128 {
 public:
  Hash128();

  void add(std::string_view bytes);
  /// 32 hex digits, of everything that was added so far.
  [[nodiscard]] std::string hex() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };

  std::unique_ptr<XXH3_state_s, Free> state_;
};

/// The hash of tables whose keys clients choose. Its key is random for each process, so that nobody can prepare texts
/// that collide; it is for nothing that is compared between processes, or that has an order.
struct KeyedHash {
  [[nodiscard]] std::size_t operator()(std::string_view text) const noexcept;
};

/// Reads `bytes` random bytes from the kernel and returns them as hex digits. Tokens and incarnations are made of them.
[[nodiscard]] std::string random_hex(std::size_t bytes);

/// Two hex digits for each byte.
[[nodiscard]] std::string hex_of(std::string_view bytes);

/// The bytes that two hex digits each stand for; none where something else is in the text.
[[nodiscard]] std::optional<std::string> bytes_of_hex(std::string_view digits);

}  // namespace gradsync
