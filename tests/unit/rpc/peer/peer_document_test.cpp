// docs/peer-protocol.md has a row for every kind of message with its length and its fields, in the order in which they
// are written, and names none that does not exist. `name`? is a field that may be absent.

#include "rpc/peer/wire_peer_declaration.hpp"
#include "rpc/peer/wire_peer_step.hpp"
#include "unit/rpc/committed_file.hpp"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <sstream>

namespace gradsync::rpc {
namespace {

constexpr const char* kDocument = "docs/peer-protocol.md";

using Names = std::vector<std::string>;

/// A field that may be absent has "?" behind its name.
struct DocumentedNames {
  Names names;

  template <typename M>
  void required(std::string_view name, M&, const char*, Bounds = {}) {
    names.emplace_back(name);
  }

  template <typename M>
  void optional(std::string_view name, M&, const char*, Bounds = {}) {
    names.push_back(std::string(name) + "?");
  }
};

template <typename T>
Names fields_of() {
  DocumentedNames visitor;
  T object{};
  Fields<T>::visit(visitor, object);
  return visitor.names;
}

struct DocumentedKind {
  std::size_t most_bytes = 0;
  Names fields;
  friend bool operator==(const DocumentedKind&, const DocumentedKind&) = default;
};

using DocumentedKinds = std::map<std::string, DocumentedKind>;

template <typename... Messages>
DocumentedKinds kinds_of(const std::variant<Messages...>&) {
  return {{Fields<Messages>::kName, {Fields<Messages>::kMostBytes, fields_of<Messages>()}}...};
}

Names split_cells(const std::string& row) {
  Names cells;
  std::istringstream text(row.substr(1));
  for (std::string cell; std::getline(text, cell, '|');) {
    cells.push_back(cell);
  }
  return cells;
}

/// The rows of the first table below a heading, without those of the head.
std::vector<Names> table_below(const std::string& heading) {
  std::istringstream lines(read_committed(kDocument));
  std::vector<Names> rows;
  bool below = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) {
      below = line == "### " + heading;
    } else if (below && line.starts_with("|")) {
      rows.push_back(split_cells(line));
    }
  }
  EXPECT_GT(rows.size(), 2U) << kDocument << " has no table below " << heading;
  rows.erase(rows.begin(), rows.begin() + std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(rows.size())));
  return rows;
}

/// What stands in backquotes in a cell.
Names quoted_in(const std::string& cell) {
  static const std::regex kQuoted("`([a-z_.]+)`(\\?)?");
  Names names;
  for (auto at = std::sregex_iterator(cell.begin(), cell.end(), kQuoted); at != std::sregex_iterator(); ++at) {
    names.push_back((*at)[1].str() + (*at)[2].str());
  }
  return names;
}

std::size_t bytes_in(const std::string& cell) {
  std::istringstream text(cell);
  std::size_t number = 0;
  std::string unit;
  text >> number >> unit;
  EXPECT_TRUE(unit == "KiB" || unit == "MiB") << cell;
  return number << (unit == "KiB" ? 10U : 20U);
}

DocumentedKinds documented(const std::string& heading) {
  DocumentedKinds kinds;
  for (const Names& cells : table_below(heading)) {
    for (const std::string& method : quoted_in(cells.at(0))) {
      EXPECT_TRUE(kinds.try_emplace(method, DocumentedKind{bytes_in(cells.at(1)), quoted_in(cells.at(2))}).second)
          << method << " has two rows";
    }
  }
  return kinds;
}

void expect_documented(const DocumentedKinds& coded, DocumentedKinds found, const std::string& heading) {
  found.merge(documented("Both ways"));
  for (const auto& [method, kind] : coded) {
    ASSERT_TRUE(found.contains(method)) << kDocument << " has no row for " << method << " below " << heading;
    EXPECT_EQ(found[method].fields, kind.fields) << method;
    EXPECT_EQ(found[method].most_bytes, kind.most_bytes) << method;
    found.erase(method);
  }
  for (const auto& [method, kind] : found) {
    ADD_FAILURE() << kDocument << " has " << method << " below " << heading << ", which does not exist";
  }
}

TEST(PeerDocument, has_every_kind_to_the_coordinator_with_its_fields) {
  expect_documented(kinds_of(engine::ToCoordinator{}), documented("To the coordinator"), "To the coordinator");
}

TEST(PeerDocument, has_every_kind_to_members_with_its_fields) {
  expect_documented(kinds_of(engine::ToMember{}), documented("From the coordinator"), "From the coordinator");
}

TEST(PeerDocument, has_every_object_with_its_fields) {
  const std::map<std::string, Names> coded{
      {"words", fields_of<engine::RecordWords>()},
      {"declared", fields_of<engine::NodeDeclared>()},
      {"by_content", fields_of<engine::DeclaredRanks>()},
      {"settings", fields_of<engine::PeerSettings>()},
      {"communicators", fields_of<device::LoadedCommunicators>()},
      {"offers", fields_of<device::CommunicatorOffer>()},
      {"roster", fields_of<engine::RosterNode>()},
      {"sites", fields_of<engine::SiteSums>()},
      {"cells", fields_of<engine::NodeCells>()},
      {"findings", fields_of<engine::NodeFindings>()},
      {"nonfinite", fields_of<device::NonfiniteFinding>()},
      {"divergence", fields_of<device::DivergenceFinding>()},
      {"missing", fields_of<device::MissingFinding>()},
      {"rows", fields_of<engine::PeerRows::Row>()},
      {"error", fields_of<Error>()}};
  std::map<std::string, Names> found;
  for (const Names& cells : table_below("Objects in them")) {
    for (const std::string& name : quoted_in(cells.at(0))) {
      found[name] = quoted_in(cells.at(1));
    }
  }
  EXPECT_EQ(found, coded);
}

}  // namespace
}  // namespace gradsync::rpc
