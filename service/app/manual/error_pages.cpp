#include "app/manual/error_pages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <regex>

namespace gradsync::app {

namespace {

using Cells = std::vector<std::string>;

constexpr std::size_t kPageWidth = 80;
constexpr std::size_t kErrorCells = 6;    ///< kind, code, HTTP, retry, meaning, what to do
constexpr std::size_t kFailureCells = 4;  ///< what happens, how it is noticed, what is seen, what to do

std::string trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos ? std::string()
                                         : std::string(text.substr(first, text.find_last_not_of(' ') - first + 1));
}

/// The cells of a row; a bar behind a backslash ends none.
Cells cells_of(std::string_view line) {
  Cells cells;
  std::string cell;
  for (std::size_t i = 1; i < line.size(); ++i) {
    if (line[i] == '\\' && i + 1 < line.size() && line[i + 1] == '|') {
      cell += line[++i];
    } else if (line[i] == '|') {
      cells.push_back(trimmed(cell));
      cell.clear();
    } else {
      cell += line[i];
    }
  }
  return cells;
}

/// The rows of all tables of a document with so many cells.
std::vector<Cells> table_rows(std::string_view document, std::size_t count) {
  std::vector<Cells> rows;
  while (!document.empty()) {
    const std::size_t end = std::min(document.find('\n'), document.size());
    const std::string_view line = document.substr(0, end);
    document.remove_prefix(std::min(end + 1, document.size()));
    if (!line.starts_with('|') || line.starts_with("|---")) {
      continue;
    }
    Cells cells = cells_of(line);
    if (cells.size() == count) {
      rows.push_back(std::move(cells));
    }
  }
  return rows;
}

std::vector<Cells> error_rows() {
  std::vector<Cells> rows = table_rows(errors_document(), kErrorCells);
  std::erase_if(rows, [](const Cells& row) { return !row[0].starts_with('`'); });
  return rows;
}

std::string kind_of_row(const Cells& row) { return row[0].substr(1, row[0].size() - 2); }

/// Without the targets of links.
std::string without_links(const std::string& markdown) {
  static const std::regex link(R"(\[([^\]]+)\]\([^)]+\))");
  return std::regex_replace(markdown, link, "$1");
}

/// In lines of `kPageWidth`, each behind `indent`; the first one behind `first`.
std::string wrapped(const std::string& text, const std::string& first, const std::string& indent) {
  std::string lines;
  std::string line = first;
  bool empty = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    if (!empty && line.size() + 1 + word.size() > kPageWidth) {
      lines += line + "\n";
      line = indent;
      empty = true;
    }
    line += (empty ? "" : " ") + word;
    empty = false;
  }
  return lines + line + "\n";
}

std::string when_it_comes(const std::string& kind) {
  std::string text;
  for (const Cells& row : table_rows(failures_document(), kFailureCells)) {
    const bool named = std::any_of(row.begin() + 1, row.end(), [&](const std::string& cell) {
      return cell.find("`" + kind + "`") != std::string::npos;
    });
    if (named) {
      text += wrapped(fmt::format("{}: {}", without_links(row[0]), without_links(row[3])), "  - ", "    ");
    }
  }
  return text;
}

}  // namespace

std::vector<std::string> error_kinds() {
  std::vector<std::string> kinds;
  for (const Cells& row : error_rows()) {
    kinds.push_back(kind_of_row(row));
  }
  return kinds;
}

std::optional<std::string> error_page(std::string_view kind) {
  for (const Cells& row : error_rows()) {
    if (kind_of_row(row) != kind) {
      continue;
    }
    std::string page = fmt::format("{} (JSON-RPC {}, HTTP {})\n\n", kind, row[1], row[2]);
    page += wrapped(without_links(row[4]), "  ", "  ");
    page += "\nWhat to do\n" + wrapped(without_links(row[5]), "  ", "  ");
    page += row[3] == "yes" ? "  The same call can succeed later.\n" : "  The same call fails again until then.\n";
    if (const std::string when = when_it_comes(std::string(kind)); !when.empty()) {
      page += "\nWhen it comes, and what to do then\n" + when;
    }
    return page;
  }
  return std::nullopt;
}

}  // namespace gradsync::app
