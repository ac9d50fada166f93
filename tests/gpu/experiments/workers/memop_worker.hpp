#pragma once
// The two processes of memop_flags.cpp: what trainer and sidecar do on their streams, one message each.

#include "gpu/experiments/workers/worker.hpp"

#include <cstddef>

namespace gradsync::experiments {

// Ready and done lie in different pages of a block of 4 MiB, the data behind them.
constexpr std::size_t kReadyOffset = 0;
constexpr std::size_t kDoneOffset = std::size_t{64} << 10;
constexpr std::size_t kDataOffset = std::size_t{2} << 20;
constexpr std::size_t kDataBytes = std::size_t{1} << 20;

/// After this long without progress an order counts as lost.
constexpr double kStuckSeconds = 10;

Handlers memop_handlers();

}  // namespace gradsync::experiments
