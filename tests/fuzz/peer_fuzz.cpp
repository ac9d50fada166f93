// A message between daemons as text, read in both directions. What was read must be written so that it reads back to
// the same text, within the length of its kind; what was refused has a reason and a hint. An input that begins with "!"
// is the texts of an error instead, one per line: whatever they hold, the sender makes them fit, and cuts no text
// twice.

#include "fuzz/fuzz.hpp"
#include "rpc/json/json_tape.hpp"
#include "rpc/peer/peer_codec.hpp"

#include <string>
#include <utility>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

Result<engine::ToCoordinator> read(rpc::PeerReader& reader, std::string_view text, const engine::ToCoordinator&) {
  return reader.to_coordinator(text);
}

Result<engine::ToMember> read(rpc::PeerReader& reader, std::string_view text, const engine::ToMember&) {
  return reader.to_member(text);
}

template <typename Direction>
void check_text(rpc::PeerReader& reader, std::string_view text) {
  const Result<Direction> message = read(reader, text, Direction{});
  if (!message) {
    REQUIRE(!message.error().message.empty() && !message.error().hint.empty());
    REQUIRE(message.error().message.size() < 4096);
    return;
  }
  const Result<std::string> written = rpc::encode_peer(*message);
  REQUIRE(written.has_value());
  const Result<Direction> again = read(reader, *written, Direction{});
  REQUIRE(again.has_value());
  REQUIRE(*rpc::encode_peer(*again) == *written);
}

void check_error(rpc::PeerReader& reader, std::string_view texts) {
  Error error = make_error(ErrorCode::StepFailed, std::string(fuzz::next_piece(texts, '\n')));
  error.hint = fuzz::next_piece(texts, '\n');
  error.path = fuzz::next_piece(texts, '\n');
  error.job = fuzz::next_piece(texts, '\n');
  error.tensor = fuzz::next_piece(texts, '\n');
  error.node = fuzz::next_piece(texts, '\n');
  while (!texts.empty()) {
    error.tensors.emplace_back(fuzz::next_piece(texts, '\n'));
  }
  const Result<std::string> written = rpc::encode_peer(engine::ToMember(engine::PeerAbort{1, std::move(error)}));
  REQUIRE(written.has_value());
  REQUIRE(rpc::read_json(*written, 32).has_value());
  const Result<engine::ToMember> told = reader.to_member(*written);
  REQUIRE(told.has_value());
  REQUIRE(*rpc::encode_peer(*told) == *written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static rpc::PeerReader reader;  // as a link has one: nothing of a text may show in the next
  const std::string_view text = fuzz::text_of(data, size);
  if (text.starts_with('!')) {
    check_error(reader, text.substr(1));
    return 0;
  }
  check_text<engine::ToCoordinator>(reader, text);
  check_text<engine::ToMember>(reader, text);
  return 0;
}
