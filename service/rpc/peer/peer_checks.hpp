#pragma once
// What the fields of one message must have in common: ranks within the world, pages within their number, one of two
// lists. What needs the plan or an earlier message is checked by the machines.

#include "rpc/json/field_reader.hpp"
#include "rpc/peer/peer_fields.hpp"

namespace gradsync::rpc {

/// True where the message is consistent; else the reader has the error.
template <typename Message>
bool is_consistent(FieldReader&, const Message&) {
  return true;
}

bool is_consistent(FieldReader& reader, const engine::PeerJoin& join);
bool is_consistent(FieldReader& reader, const engine::PeerPrepare& prepare);
bool is_consistent(FieldReader& reader, const engine::PeerAsk& ask);
bool is_consistent(FieldReader& reader, const engine::PeerRows& rows);
bool is_consistent(FieldReader& reader, const engine::PeerCompare& compare);
bool is_consistent(FieldReader& reader, const engine::PeerPolicies& policies);
bool is_consistent(FieldReader& reader, const engine::PeerDeclaration& declaration);

}  // namespace gradsync::rpc
