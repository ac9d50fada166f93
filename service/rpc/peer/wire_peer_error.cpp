#include "rpc/peer/wire_peer_error.hpp"

#include "rpc/error_codes.hpp"

namespace gradsync::rpc {

bool Codec<ErrorCode>::read(FieldReader& reader, Value value, ErrorCode& out, Bounds) {
  for (const ErrorRow& row : error_rows()) {
    if (value.is(TokenType::String) && value.text() == kind_of(row.code)) {
      out = row.code;
      return true;
    }
  }
  return reader.wrong_type(value, "the kind of an error, as docs/errors.md has them");
}

void Codec<ErrorCode>::write(JsonWriter& writer, const ErrorCode& code) {
  writer.value(std::string_view(kind_of(code)));
}

}  // namespace gradsync::rpc
