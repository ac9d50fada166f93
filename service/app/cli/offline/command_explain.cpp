#include "app/cli/commands.hpp"
#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"
#include "app/manual/error_pages.hpp"
#include "base/text/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::app {

namespace {

/// What to do about a kind that does not exist: a slip has one that is near, a part of a name has those that contain
/// it.
std::string kinds_like(const std::string& word, const std::vector<std::string>& kinds) {
  std::vector<std::string> like;
  if (const std::string nearest = nearest_name(word, kinds); !nearest.empty()) {
    like.push_back(nearest);
  } else {
    std::ranges::copy_if(kinds, std::back_inserter(like), [&](const std::string& kind) {
      return kind.find(word) != std::string::npos;
    });
  }
  return like.empty() ? "gradsyncd explain lists them" : fmt::format("did you mean {}?", enumerate_names(like));
}

}  // namespace

int execute(const ExplainCommand& command) {
  const std::vector<std::string> kinds = error_kinds();
  if (command.kind.empty()) {
    for (const std::string& kind : kinds) {
      std::cout << kind << "\n";
    }
    return kExitOk;
  }
  const std::optional<std::string> page = error_page(command.kind);
  if (!page) {
    complain(fmt::format("there is no kind of error '{}'", command.kind), kinds_like(command.kind, kinds));
    return kExitUsage;
  }
  std::cout << *page;
  return kExitOk;
}

}  // namespace gradsync::app
