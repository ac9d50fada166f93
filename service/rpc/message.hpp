#pragma once
// A message that is being carried out, item by item: the rest of a long batch waits until other connections had a turn.
// Thread: io only.

#include "base/fair_budget.hpp"
#include "rpc/envelope.hpp"
#include "rpc/json/json_tape.hpp"

#include <cstddef>
#include <memory>
#include <optional>

namespace gradsync::rpc {

class ReplyGroup;

struct Message {
  explicit Message(std::size_t depth) : tapes(depth) {}

  TapeReader tapes;
  Envelope envelope;
  std::shared_ptr<ReplyGroup> group;
  std::size_t text_bytes = 0;
  std::size_t next = 0;                    ///< the item that comes next
  bool called = false;                     ///< an item was handed to a method
  std::optional<FairBudget::Share> waits;  ///< what it holds of the budget of batches that wait
  std::optional<Error> cut;                ///< the answer to all items that are left
};

}  // namespace gradsync::rpc
