#pragma once
// The files of the page for browsers, which the build puts into the binary: the same for everybody, with nothing of a
// job. Pure.

#include "net/types.hpp"

#include <span>
#include <string_view>

namespace gradsync::app {

struct PageFile {
  std::string_view name;  ///< "page.js"
  std::string_view text;
};

/// Defined by a file that the build writes (page_files.cmake).
[[nodiscard]] std::span<const PageFile> page_files();

[[nodiscard]] bool is_page_file(std::string_view path);

/// "/page/page.js" → that file; nullopt: there is none. "/" is the document.
[[nodiscard]] std::optional<net::HttpReply> page_file(std::string_view path);

/// Whether a reader asks for HTML by name, as browsers do: `Accept: text/html,…`. curl says `*/*`.
[[nodiscard]] bool is_browser(std::string_view accept);

}  // namespace gradsync::app
