#pragma once
// The JSON-RPC 2.0 envelope: one tape → requests, and replies → text. Knows no method.

#include "rpc/json/json_tape.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::rpc {

inline constexpr std::size_t kLongestId = 128;  ///< bytes of a string id

/// One item of a message. With an `error` it is not a request and is answered with that error.
struct Request {
  std::optional<std::string> id;  ///< JSON text; empty: a notification, or no usable id
  std::string method;
  std::optional<Value> params;  ///< an object; empty: absent
  std::optional<Error> error;

  [[nodiscard]] bool answered() const { return id.has_value() || error.has_value(); }
};

[[nodiscard]] Request read_request(Value item);

/// Items of a message: itself, or those of a batch. Errors: InvalidRequest for an empty or too long batch.
struct Envelope {
  bool batch = false;
  std::vector<Request> requests;
};

[[nodiscard]] Result<void> read_envelope(Value root, std::size_t batch_items, Envelope& envelope);

/// `id` is JSON text or empty for null.
[[nodiscard]] std::string result_reply(const std::optional<std::string>& id, std::string_view result);
[[nodiscard]] std::string error_reply(const std::optional<std::string>& id, const Error& error);
[[nodiscard]] std::string notification(std::string_view method, std::string_view params);

/// Ids that a connection may not use: those still in flight and the last `kRemembered` used ones. Bounded, so a
/// connection may live for ever; a client that counts up never meets the limit of the memory, and takes none but for
/// the first of its ids.
class UsedIds {
 public:
  static constexpr std::size_t kRemembered = 1024;

  /// False when the id is in flight or among the remembered.
  [[nodiscard]] bool begin(const std::string& id);
  void end(const std::string& id);

  [[nodiscard]] std::size_t in_flight() const { return in_flight_.size(); }

 private:
  /// Integers used one after the other, each above the one before by 1; or a text, used once.
  struct Used {
    std::uint64_t first_use = 0;  ///< the number of that use, counted on this connection
    std::uint64_t uses = 0;
    std::uint64_t value = 0;  ///< the first integer; of a text its hash
    std::string text;         ///< empty: integers
  };

  [[nodiscard]] bool is_remembered(const Used& used, std::uint64_t use) const;
  [[nodiscard]] bool has(const Used& used, std::uint64_t value, std::string_view text) const;

  std::vector<std::string> in_flight_;  ///< one or two
  std::vector<Used> used_;              ///< in no order; what is forgotten is written over
  std::size_t newest_ = 0;
  std::uint64_t uses_ = 0;
};

}  // namespace gradsync::rpc
