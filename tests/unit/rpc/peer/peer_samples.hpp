#pragma once
// Messages between daemons to test with: some made by hand, with every kind and every field in them, and random ones.

#include "engine/peers/peer_message.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::rpc {

/// Their texts are in tests/contract/peer, one per line in this order.
[[nodiscard]] std::vector<engine::ToCoordinator> samples_to_coordinator();
[[nodiscard]] std::vector<engine::ToMember> samples_to_member();

/// Equal numbers give equal messages. `kind` is the index of the variant.
[[nodiscard]] engine::ToCoordinator random_to_coordinator(std::size_t kind, std::uint64_t seed);
[[nodiscard]] engine::ToMember random_to_member(std::size_t kind, std::uint64_t seed);

}  // namespace gradsync::rpc
