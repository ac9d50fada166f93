#pragma once
// Every kind of error has a page, which `gradsyncd explain` prints. Hints name it where they leave the daemon.

#include "base/error.hpp"

#include <string>
#include <string_view>

namespace gradsync {

/// The hint as people and programs get it: with the command that prints the page of the kind.
[[nodiscard]] inline std::string with_page(std::string_view hint, ErrorCode code) {
  return std::string(hint) + (hint.empty() ? "(" : " (") + "gradsyncd explain " + kind_of(code) + ")";
}

}  // namespace gradsync
