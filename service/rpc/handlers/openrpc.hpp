#pragma once
// The OpenRPC document, made from the method table. docs/openrpc.json is this, indented; a test compares.

#include "rpc/json/codec.hpp"

namespace gradsync::rpc {

[[nodiscard]] Json openrpc_document();

}  // namespace gradsync::rpc
