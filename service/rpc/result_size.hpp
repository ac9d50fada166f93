#pragma once
// Long results, made to fit one message by leaving out what the client can do without. A committed step is never
// answered with an error because its report is long.

#include "rpc/reply.hpp"
#include "rpc/wire_declare.hpp"
#include "rpc/wire_read.hpp"
#include "rpc/wire_step.hpp"

#include <string>

namespace gradsync::rpc {

inline constexpr std::size_t kMostOffsets = 20'000;  ///< a declaration of more tensors is answered without `offsets`

[[nodiscard]] std::string render(const ReportAnswer& answer, std::size_t room);   ///< without `layers`, then `absent`
[[nodiscard]] std::string render(const StatsAnswer& answer, std::size_t room);    ///< the newest reports that fit
[[nodiscard]] std::string render(const DeclareAnswer& answer, std::size_t room);  ///< without `tensors` of the buckets

/// The `result` of a step's reply, as the engine records it.
[[nodiscard]] engine::EncodeReport report_encoder(std::size_t message_bytes);

}  // namespace gradsync::rpc
