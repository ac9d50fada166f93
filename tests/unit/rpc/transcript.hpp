#pragma once
// Reads and matches transcripts (tests/contract/README.md says what a line means).

#include "rpc/json/codec.hpp"

#include <map>
#include <string>
#include <vector>

namespace gradsync::rpc {

struct Transcript {
  std::string name;
  std::vector<std::string> needs;
  std::vector<Json> lines;  ///< includes are unfolded; each has "on"
  std::string file;
};

/// All transcripts of tests/contract.
[[nodiscard]] std::vector<Transcript> load_transcripts();

using Variables = std::map<std::string, Json>;

/// Replaces "$name" by the variable and "${name}" inside texts.
[[nodiscard]] Json substitute(const Json& value, const Variables& variables);

/// "" when `found` is what the pattern says, else where they differ. Binds variables that are not set yet.
[[nodiscard]] std::string mismatch(
    const Json& pattern, const Json& found, Variables& variables, const std::string& path = ""
);

}  // namespace gradsync::rpc
