#pragma once
// JSON text onto a tape. All of Boost.JSON lies behind this header: of the libraries at hand it is the one that reads
// without allocating (docs/adr/0014). Its own idea of a double's value is not exact and goes unused.

#include "rpc/json/tape_builder.hpp"

#include <string_view>

namespace gradsync::rpc {

/// One value and nothing but white space beside it (a byte order mark in front is passed over). Errors: ParseError,
/// with line and column.
[[nodiscard]] Result<void> parse_json(std::string_view text, TapeBuilder& builder);

}  // namespace gradsync::rpc
