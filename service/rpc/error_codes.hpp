#pragma once
// The one table: ErrorCode → JSON-RPC code → HTTP status → kind → retryable → default hint. docs/errors.md and the
// Python client's errors.py are tested against it (tests/contract/error_codes.json is its export).

#include "base/error.hpp"

#include <span>
#include <string>

namespace gradsync::rpc {

struct ErrorRow {
  ErrorCode code = ErrorCode::InternalError;
  int json_rpc = -32603;   ///< domain codes are positive: outside the range that JSON-RPC reserves
  int http = 500;          ///< for `POST /rpc`
  bool retryable = false;  ///< the same call may succeed later, or after what the hint says about the daemon's state
  const char* hint = "";   ///< when the error brings none
};

[[nodiscard]] std::span<const ErrorRow> error_rows();
[[nodiscard]] const ErrorRow& row_of(ErrorCode code);

/// `{"code", "message", "data": {…}}`, as in a reply.
[[nodiscard]] std::string error_json(const Error& error);

/// The table as JSON, one object per code.
[[nodiscard]] std::string error_table_json();

}  // namespace gradsync::rpc
