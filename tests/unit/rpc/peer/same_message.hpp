#pragma once
// Whether two messages between daemons are the same, member by member and double by double in bits. A member that is
// added to a struct breaks its line here, so that the codec cannot forget it.

#include "engine/peers/peer_message.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace gradsync::rpc {

#define GRADSYNC_MEMBERS(Type, ...)         \
  inline auto members(const Type& object) { \
    const auto& [__VA_ARGS__] = object;     \
    return std::tie(__VA_ARGS__);           \
  }
// clang-format off
GRADSYNC_MEMBERS(arithmetic::DoubleDouble, a, b)
GRADSYNC_MEMBERS(device::TensorSum, a, b, c, d, e)
GRADSYNC_MEMBERS(device::StatsRow, a, b, c, d, e, f, g, h)
GRADSYNC_MEMBERS(device::NonfiniteFinding, a, b, c)
GRADSYNC_MEMBERS(device::DivergenceFinding, a, b, c, d)
GRADSYNC_MEMBERS(device::MissingFinding, a, b)
GRADSYNC_MEMBERS(Error, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o)
GRADSYNC_MEMBERS(engine::RecordWords, a, b, c)
GRADSYNC_MEMBERS(engine::DeclaredRanks, a, b, c)
GRADSYNC_MEMBERS(engine::PeerSettings, a, b, c, d, e)
GRADSYNC_MEMBERS(engine::NodeDeclared, a, b, c, d)
GRADSYNC_MEMBERS(engine::NodeCells, a, b, c, d)
GRADSYNC_MEMBERS(engine::NodeFindings, a, b, c, d, e)
GRADSYNC_MEMBERS(engine::RosterNode, a, b, c, d, e, f)
GRADSYNC_MEMBERS(engine::PeerJoin, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q)
GRADSYNC_MEMBERS(device::NcclUniqueId, a)
GRADSYNC_MEMBERS(device::CommunicatorOffer, a, b, c, d, e)
GRADSYNC_MEMBERS(device::LoadedCommunicators, a, b)
GRADSYNC_MEMBERS(device::CommunicatorId, a, b, c)
GRADSYNC_MEMBERS(engine::PeerReady, a, b, c, d, e)
GRADSYNC_MEMBERS(engine::PeerConnected, a)
GRADSYNC_MEMBERS(engine::PeerLeave, a, b)
GRADSYNC_MEMBERS(engine::SiteSums, a, b, c)
GRADSYNC_MEMBERS(engine::PeerAsk, a, b, c, d)
GRADSYNC_MEMBERS(engine::PeerRows::Row, a, b, c, d)
GRADSYNC_MEMBERS(engine::PeerRows, a, b, c, d)
GRADSYNC_MEMBERS(engine::PeerVote, a, b)
GRADSYNC_MEMBERS(engine::PeerFail, a, b)
GRADSYNC_MEMBERS(engine::PeerOverdue, a, b, c, d)
GRADSYNC_MEMBERS(engine::PeerMissing, a, b, c, d)
GRADSYNC_MEMBERS(engine::PeerHello, a, b, c, d, e, f)
GRADSYNC_MEMBERS(engine::PeerRefused, a)
GRADSYNC_MEMBERS(engine::PeerRuling, a, b)
GRADSYNC_MEMBERS(engine::PeerConnect, a, b)
GRADSYNC_MEMBERS(engine::PeerBegin, a)
GRADSYNC_MEMBERS(engine::PeerEnd, a, b, c)
GRADSYNC_MEMBERS(engine::PeerCompare, a, b, c)
GRADSYNC_MEMBERS(engine::PeerDecision, a, b, c, d)
GRADSYNC_MEMBERS(engine::PeerDone, a)
GRADSYNC_MEMBERS(engine::PeerAbort, a, b)
GRADSYNC_MEMBERS(engine::PeerWho, a)
GRADSYNC_MEMBERS(engine::PeerPolicies, a, b, c, d)
GRADSYNC_MEMBERS(engine::PeerWant, a)
GRADSYNC_MEMBERS(engine::PeerDeclaration, a, b, c, d, e)
GRADSYNC_MEMBERS(engine::PeerPause, a)
// clang-format on
#undef GRADSYNC_MEMBERS

inline std::tuple<> members(const engine::PeerBeat&) { return {}; }

/// All but its roster by rank, which is not sent.
inline auto members(const engine::PeerPrepare& prepare) {
  const auto& [epoch, coordinator, roster, weight_fingerprints, settings, by_rank] = prepare;
  return std::tie(epoch, coordinator, roster, weight_fingerprints, settings);
}

/// All but its times, which are not sent.
inline auto members(const engine::Ask& ask) {
  const auto& [kind, step, scale, scaled, abandon, override_max_norm, max_norm, state_digest, since, half, deadline] =
      ask;
  return std::tie(kind, step, scale, scaled, abandon, override_max_norm, max_norm, state_digest);
}

template <typename First, typename Second>
auto members(const std::pair<First, Second>& pair) {
  return std::tie(pair.first, pair.second);
}

template <typename T>
bool same(const T& left, const T& right) {
  if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<std::uint64_t>(left) == std::bit_cast<std::uint64_t>(right);
  } else if constexpr (requires { left.valueless_by_exception(); }) {
    return left.index() == right.index() && std::visit(
                                                [&]<typename Alternative>(const Alternative& value) {
                                                  return same(value, std::get<Alternative>(right));
                                                },
                                                left
                                            );
  } else if constexpr (requires { left.has_value(); }) {
    return left.has_value() == right.has_value() && (!left || same(*left, *right));
  } else if constexpr (requires { left.begin(); }) {
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), [](const auto& one, const auto& other) {
      return same(one, other);
    });
  } else if constexpr (requires { members(left); }) {
    const auto equal = [&]<std::size_t... Index>(std::index_sequence<Index...>, const auto& one, const auto& other) {
      return (same(std::get<Index>(one), std::get<Index>(other)) && ...);
    };
    using Members = decltype(members(left));
    return equal(std::make_index_sequence<std::tuple_size_v<Members>>(), members(left), members(right));
  } else {
    return left == right;
  }
}

}  // namespace gradsync::rpc
