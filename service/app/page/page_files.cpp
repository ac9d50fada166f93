#include "app/page/page_files.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace gradsync::app {

namespace {

constexpr std::string_view kFolder = "/page/";
constexpr std::string_view kDocument = "page.html";

/// Scripts, styles and answers come from this daemon alone. No text becomes markup or a script (trusted types), and no
/// other page frames this one.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

constexpr std::array<std::pair<std::string_view, const char*>, 4> kTypes{{
    {".html", "text/html; charset=utf-8"},
    {".css", "text/css; charset=utf-8"},
    {".js", "text/javascript; charset=utf-8"},
    {".svg", "image/svg+xml"},
}};

const char* type_of(std::string_view name) {
  const auto found = std::ranges::find_if(kTypes, [&](const auto& type) { return name.ends_with(type.first); });
  return found == kTypes.end() ? "application/octet-stream" : found->second;
}

/// nullptr: there is none.
const PageFile* file_at(std::string_view path) {
  const bool in_folder = path.starts_with(kFolder) && path != std::string(kFolder) + std::string(kDocument);
  const std::string_view name = path == "/" ? kDocument : in_folder ? path.substr(kFolder.size()) : std::string_view{};
  const std::span<const PageFile> files = page_files();
  const auto found = std::ranges::find(files, name, &PageFile::name);
  return found == files.end() ? nullptr : &*found;
}

}  // namespace

bool is_page_file(std::string_view path) { return file_at(path) != nullptr; }

std::optional<net::HttpReply> page_file(std::string_view path) {
  const PageFile* const file = file_at(path);
  if (file == nullptr) {
    return std::nullopt;
  }
  net::HttpReply reply{200, type_of(file->name), std::string(file->text)};
  reply.content_policy = kPolicy;
  return reply;
}

bool is_browser(std::string_view accept) { return accept.find("text/html") != std::string_view::npos; }

}  // namespace gradsync::app
