#pragma once
// A page for each kind of error, for terminals: what it means, what to do, and when it comes. They are made of the
// tables in docs/errors.md and docs/operate/failures.md, as the pages of the documentation's site are. Pure.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::app {

/// docs/errors.md and docs/operate/failures.md, as they were when the program was built.
[[nodiscard]] std::string_view errors_document();
[[nodiscard]] std::string_view failures_document();

/// In the order of the document.
[[nodiscard]] std::vector<std::string> error_kinds();

/// nullopt: there is no such kind.
[[nodiscard]] std::optional<std::string> error_page(std::string_view kind);

}  // namespace gradsync::app
