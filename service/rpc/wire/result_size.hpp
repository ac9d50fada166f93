#pragma once
// Long results, made to fit one message by leaving out what the client can do without. A committed step is never
// answered with an error because its report is long.

#include "rpc/envelope.hpp"
#include "rpc/reply.hpp"
#include "rpc/wire/wire_declare.hpp"
#include "rpc/wire/wire_read.hpp"
#include "rpc/wire/wire_step.hpp"

#include <algorithm>
#include <cstddef>
#include <string>

namespace gradsync::rpc {

/// The bytes that a result may have so that its reply fits a message, whatever the id of the call.
[[nodiscard]] constexpr std::size_t result_bytes(std::size_t message_bytes) {
  constexpr std::size_t kEnvelope = 64 + 6 * kLongestId;  // six bytes for an escaped one
  return message_bytes - std::min(message_bytes, kEnvelope);
}

inline constexpr std::size_t kMostOffsets = 20'000;  ///< a declaration of more tensors is answered without `offsets`

/// Without `layers`, then `absent`, then `watch`; then the first alone of `missing`, of `divergence`, of `nonfinite`.
[[nodiscard]] std::string render(const ReportAnswer& answer, std::size_t room);
[[nodiscard]] std::string render(const StatsAnswer& answer, std::size_t room);    ///< the newest reports that fit
[[nodiscard]] std::string render(const StatusAnswer& answer, std::size_t room);   ///< the first jobs that fit
[[nodiscard]] std::string render(const DeclareAnswer& answer, std::size_t room);  ///< without `tensors` of the buckets

/// The `result` of a step's reply, as the engine records it.
[[nodiscard]] engine::EncodeReport report_encoder(std::size_t message_bytes);

}  // namespace gradsync::rpc
