// Any bytes as JSON: our reader and nlohmann's make the same of them, or both refuse; a refusal has a reason.

#include "fuzz/fuzz.hpp"
#include "rpc/json/json_tape.hpp"
#include "unit/rpc/json_oracle.hpp"

#include <cstdio>
#include <string>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

constexpr std::size_t kDepth = 4;  // so low that inputs reach it

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  const std::string difference = rpc::difference_to_oracle(text, kDepth);
  if (!difference.empty()) {
    std::fprintf(stderr, "%s\n", difference.c_str());
  }
  REQUIRE(difference.empty());
  const Result<rpc::Tape> tape = rpc::read_json(text, kDepth);
  REQUIRE(tape.has_value() || !tape.error().message.empty());
  return 0;
}
