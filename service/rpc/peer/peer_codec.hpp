#pragma once
// Messages between the daemons of a job ↔ the text of one JSON-RPC notification each. docs/peer-protocol.md has the
// fields and their bounds. What was decoded keeps those bounds, and needs memory in proportion to its text; what was
// encoded from a message that keeps them decodes to the same message, whose doubles have the same bits. The texts of an
// error are made to fit when they are written. A reader belongs to one link and one thread.

#include "engine/peers/peer_message.hpp"
#include "rpc/json/field_reader.hpp"
#include "rpc/json/json_tape.hpp"

#include <string>
#include <string_view>

namespace gradsync::rpc {

// Errors: LimitExceeded, where a reader would refuse the text for its length.
[[nodiscard]] Result<std::string> encode_peer(const engine::ToCoordinator& message);
[[nodiscard]] Result<std::string> encode_peer(const engine::ToMember& message);

/// Reads one text after the other. The memory of a short one serves the next; that of a long one is given back at once.
class PeerReader {
 public:
  PeerReader();

  // Errors: LimitExceeded (too long for its kind: found before it is parsed), ParseError, InvalidRequest (no
  // notification), MethodNotFound, InvalidParams. All but the first two begin with the method where it is known; every
  // one has a hint. A hello of another peer protocol is no error: only `peer_protocol`, `version` and `node` of it are
  // read, so that the machine can say what differs.
  [[nodiscard]] Result<engine::ToCoordinator> to_coordinator(std::string_view text);
  [[nodiscard]] Result<engine::ToMember> to_member(std::string_view text);

 private:
  TapeReader texts_;
  FieldReader fields_;
};

}  // namespace gradsync::rpc
