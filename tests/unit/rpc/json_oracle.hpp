#pragma once
// A second reader of JSON, made of nlohmann's parser and of the rules in json_tape.hpp, to hold ours against: the same
// value or both refuse.

#include <cstddef>
#include <string>
#include <string_view>

namespace gradsync::rpc {

/// "" when both readers agree about `text`, else what each of them makes of it.
///
/// They may differ in two things. nlohmann takes a NUL byte for the end of the text; ours refuses it. And ours may
/// refuse an exponent beyond 32 bits where the value is 0 all the same.
[[nodiscard]] std::string difference_to_oracle(std::string_view text, std::size_t depth);

}  // namespace gradsync::rpc
