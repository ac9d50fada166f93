#pragma once
// What the flight recorder keeps of a job's steps (ADR 0035): plain values of a fixed size. A time of zero is that of
// something that has not happened; ranks are those of this node, and a rank of −1 is none.

#include "base/clock.hpp"
#include "base/error.hpp"
#include "engine/peers/peer_message.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace gradsync::engine {

enum class BucketState : std::uint8_t {
  Collecting,  ///< some rank has called it ready
  Launched,    ///< the lane has it
  Reduced,
  Failed,  ///< its attempt failed while the lane had it
};

enum class AttemptState : std::uint8_t { Open, Done, Failed };

/// One bucket in one attempt.
struct BucketRecord {
  std::uint64_t word = 0;   ///< of the attempt, `attempt_word`
  TimePoint first_ready{};  ///< when the first rank called it ready
  TimePoint last_ready{};   ///< and the last one so far
  TimePoint launched{};
  TimePoint done{};  ///< when the lane's report came
  std::uint64_t bytes = 0;
  std::uint32_t bucket = 0;
  std::uint32_t order = 0;      ///< its place among the attempt's launches, from 1; 0: it is not launched
  std::int32_t last_rank = -1;  ///< that called it ready last
  std::uint16_t ready = 0;      ///< ranks that have
  BucketState state = BucketState::Collecting;
  std::uint8_t lanes = 0;  ///< that have it, and have not reduced it
};

static_assert(sizeof(BucketRecord) == 64);

/// What one bucket of one attempt took on the connections to another node.
struct LinkRecord {
  std::uint64_t word = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  TimePoint launched{};
  TimePoint sent{};      ///< the last byte was given to the network
  TimePoint received{};  ///< the last byte was here
  TimePoint partials{};  ///< its last partial sum was here, which waits for no third node; zero: it sends none
  std::uint32_t bucket = 0;
  NodeNumber node = 0;  ///< the other end
};

static_assert(sizeof(LinkRecord) <= 64);

/// One attempt.
struct AttemptRecord {
  static constexpr std::size_t kMissing = 4;

  std::uint64_t word = 0;
  std::int64_t step = -1;       ///< the trainers' label; −1: no rank has said it
  TimePoint begun{};            ///< the first word of any rank
  TimePoint first_ask{};        ///< of the ranks here
  TimePoint ask_before_last{};  ///< what lies between it and `last_ask` was waited for one rank alone
  TimePoint last_ask{};
  TimePoint measured{};  ///< the lanes have measured
  TimePoint decided{};   ///< the decision of all nodes came; zero on a node that is alone
  TimePoint voted{};     ///< everything is prepared
  TimePoint ended{};
  std::int32_t last_rank = -1;  ///< that asked last
  std::uint32_t asks = 0;
  std::uint32_t launched = 0;  ///< buckets
  std::uint32_t reduced = 0;
  std::array<std::int32_t, kMissing> missing{};  ///< the first of those that the attempt failed for, of any node
  std::uint16_t missing_count = 0;
  AttemptState state = AttemptState::Open;
  ErrorCode error = ErrorCode::InternalError;  ///< why it failed
};

static_assert(sizeof(AttemptRecord) <= 128);

}  // namespace gradsync::engine
