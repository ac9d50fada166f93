#pragma once
// Executes the transfer programs of all nodes of a job with real numbers: nodes that add, links that keep the order of
// the messages of one payload, staging memory that is bounded, and a seed that decides what happens next. Whatever
// breaks a promise of the programs is a test failure. Each node acts on its own projection of a program alone.

#include "plan/transfer/node_transfer.hpp"
#include "unit/plan/transfer/transfer_world.hpp"

#include <compare>
#include <deque>
#include <map>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

namespace gradsync::plan {

/// Addition and division in the format of the sums.
inline double added(DType sum, double a, double b) {
  return sum == DType::Float64 ? a + b : double{static_cast<float>(a) + static_cast<float>(b)};
}

inline double divided(DType sum, double value, double divisor) {
  return sum == DType::Float64 ? value / divisor : double{static_cast<float>(value) / static_cast<float>(divisor)};
}

/// A part in the memory of a destination.
struct Output {
  Memory memory;
  std::uint32_t tensor = 0;  ///< the tensor whose part it is; for a tied copy that of the counted one
  std::uint32_t part = 0;
  auto operator<=>(const Output&) const = default;
};

/// What was written; nothing of a tensor that is absent.
using Outputs = std::map<Output, std::vector<double>>;

inline constexpr double kNotWritten = 777;

struct SentBytes {
  std::uint64_t values = 0;
  std::uint64_t flags = 0;
  std::uint64_t messages = 0;
  std::uint64_t pieces = 0;  ///< in all messages
};

/// The elements of one sum of a part, sent from one node to another.
struct Trip {
  Payload payload = Payload::Partial;
  TransferNode from = 0;
  TransferNode to = 0;
  std::uint32_t tensor = 0;
  std::uint32_t part = 0;
  std::uint32_t sum = 0;
  auto operator<=>(const Trip&) const = default;
};

class Exchange {
 public:
  Exchange(const TransferWorld& world, const TransferOptions& options, std::uint64_t seed);

  /// A step: every bucket, then what the nodes decide together of tensors that nobody used.
  void run();

  std::vector<BucketTransfer> programs;  ///< by bucket
  Outputs outputs;
  std::vector<SentBytes> sent;  ///< by node
  std::uint64_t most_staged = 0;
  std::map<Trip, std::vector<int>> trips;  ///< by element of the part: how often it was sent

 private:
  using Key = std::pair<std::uint32_t, std::uint32_t>;  ///< bucket and block

  /// The messages of one payload from one node to another keep their order.
  struct Link {
    TransferNode from = 0;
    TransferNode to = 0;
    Payload payload = Payload::Partial;
    auto operator<=>(const Link&) const = default;
  };

  struct Message {
    Key key;
    TransferMessage named;  ///< as that end sees it that has it
    std::vector<std::byte> bytes = {};
  };

  /// Values of a block, and by piece whether anybody contributed.
  struct Values {
    std::vector<double> values;
    std::vector<bool> contributed;
  };

  /// A block that a node has staging memory for.
  struct Work {
    std::map<TransferNode, Values> partial_sums;  ///< at its owner
    std::size_t open = 0;                         ///< messages to be sent or received, and the owner's addition
  };

  struct Node {
    std::vector<Key> order;      ///< the blocks in which it has a part, in the order of the programs
    std::size_t next = 0;        ///< the first that has not begun
    std::vector<Key> owned;      ///< those that it owns
    std::size_t next_owned = 0;  ///< the first that is not added up
    std::map<Key, std::size_t> messages;
    std::map<Key, Work> works;
    std::map<Link, std::deque<Message>> to_send;
    std::map<Link, std::deque<Message>> to_receive;
    std::uint64_t staged = 0;
  };

  [[nodiscard]] const TransferBlock& block(const Key& key) const { return programs[key.first].blocks[key.second]; }

  [[nodiscard]] const TransferStream& stream(const Key& key) const;
  [[nodiscard]] std::uint64_t staging(const Key& key, TransferNode node) const;
  [[nodiscard]] bool can_begin(TransferNode node) const;
  [[nodiscard]] Values partial_sum(const Key& key, TransferNode node) const;
  [[nodiscard]] DType format(const Key& key, Payload payload) const;
  [[nodiscard]] Values read(const Message& message) const;
  [[nodiscard]] bool present(std::uint32_t tensor) const;

  void load(std::uint32_t bucket);
  void begin(TransferNode node);
  void send(const Link& link, const Key& key, const Values& values);
  void note_trip(const Link& link, const Key& key);
  void arrive(const Link& link);
  void add_up(TransferNode node);
  void finish(TransferNode node, const Key& key, const std::map<TransferNode, Values>& partial_sums);
  void done_one(TransferNode node, const Key& key);
  void write(TransferNode node, const TransferPiece& piece, bool contributed, const double* values);
  void add_what_stays(TransferNode node);
  void write_zeros();

  const TransferWorld& world_;
  std::uint64_t staging_bytes_;
  std::mt19937_64 random_;
  std::vector<Node> nodes_;
  std::map<Link, std::deque<Message>> links_;
  std::vector<std::pair<TransferNode, TransferPiece>> empty_;  ///< nobody contributed, as those nodes know
};

}  // namespace gradsync::plan
