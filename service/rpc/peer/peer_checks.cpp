#include "rpc/peer/peer_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <cmath>
#include <utility>
#include <vector>

namespace gradsync::rpc {

namespace {

using RankSet = std::bitset<kPeerRanks>;

template <typename... Arguments>
bool fail_at(
    FieldReader& reader, std::string_view field, fmt::format_string<Arguments...> text, Arguments&&... values
) {
  const FieldReader::Step step(reader, field);
  return reader.fail(fmt::format(text, std::forward<Arguments>(values)...));
}

/// Adds the ranks of all contents; each must be new, and their weights be one of `lists`.
bool add_declared(
    FieldReader& reader, const std::vector<engine::DeclaredRanks>& by_content, std::size_t lists, RankSet& seen
) {
  const FieldReader::Step list(reader, "by_content");
  for (std::size_t i = 0; i < by_content.size(); ++i) {
    const FieldReader::Step item(reader, i);
    const engine::DeclaredRanks& declared = by_content[i];
    if (declared.ranks.empty()) {
      return fail_at(reader, "ranks", "is an empty list; expected the ranks that declared this");
    }
    if (declared.weights && *declared.weights >= lists) {
      return fail_at(
          reader, "weights", "is {}; expected the index of one of {} weight_fingerprints", *declared.weights, lists
      );
    }
    for (const auto& [first, count] : declared.ranks) {
      for (std::int64_t rank = first; rank < first + count; ++rank) {
        if (seen.test(static_cast<std::size_t>(rank))) {
          return fail_at(reader, "ranks", "has rank {}, which is given before; expected each rank once", rank);
        }
        seen.set(static_cast<std::size_t>(rank));
      }
    }
  }
  return true;
}

/// One for each rank, or none.
bool is_for_ranks(FieldReader& reader, const std::vector<std::uint32_t>& devices, std::size_t ranks) {
  return devices.empty() || devices.size() == ranks ||
         fail_at(
             reader, "devices", "has {} entries; expected {}, one for each rank of the node", devices.size(), ranks
         );
}

bool has_joined_ranks(FieldReader& reader, const engine::PeerJoin& join) {
  RankSet attached;
  for (const std::int64_t rank : join.ranks) {
    attached.set(static_cast<std::size_t>(rank));
  }
  RankSet declared;
  const FieldReader::Step step(reader, "declared");
  if (!add_declared(reader, join.declared->by_content, join.declared->weight_fingerprints.size(), declared)) {
    return false;
  }
  for (std::size_t rank = 0; rank < declared.size(); ++rank) {
    if (declared.test(rank) && !attached.test(rank)) {
      return fail_at(reader, "by_content", "has rank {}, which is not in ranks; expected the same ranks", rank);
    }
    if (attached.test(rank) && !declared.test(rank)) {
      return fail_at(reader, "by_content", "lacks rank {}, which is in ranks; expected the same ranks", rank);
    }
  }
  return is_for_ranks(reader, join.declared->devices, join.ranks.size());
}

bool is_page(FieldReader& reader, std::uint32_t page, std::uint32_t pages) {
  return page < pages || fail_at(reader, "page", "is {} of {} pages; expected 0 to {}", page, pages, pages - 1);
}

bool are_not_both(FieldReader& reader, bool first, bool second, const char* first_name, const char* second_name) {
  return !first || !second || fail_at(reader, second_name, "is given beside {}; expected one of the two", first_name);
}

}  // namespace

bool is_consistent(FieldReader& reader, const engine::PeerJoin& join) {
  if (join.local_world_size > join.world_size) {
    return fail_at(
        reader, "local_world_size", "is {}; expected 1 to {}, the world_size", join.local_world_size, join.world_size
    );
  }
  if (!join.ranks.empty() && join.ranks.back() >= join.world_size) {
    return fail_at(
        reader, "ranks", "has rank {}; expected 0 to {}, below world_size", join.ranks.back(), join.world_size - 1
    );
  }
  if (std::cmp_greater(join.ranks.size(), join.local_world_size)) {
    return fail_at(
        reader,
        "ranks",
        "has {} ranks; expected at most {}, the local_world_size",
        join.ranks.size(),
        join.local_world_size
    );
  }
  return !join.declared || has_joined_ranks(reader, join);
}

bool is_consistent(FieldReader& reader, const engine::PeerPrepare& prepare) {
  RankSet seen;
  std::int64_t least = -1;
  const FieldReader::Step list(reader, "roster");
  for (std::size_t i = 0; i < prepare.roster.size(); ++i) {
    const FieldReader::Step item(reader, i);
    const std::vector<engine::DeclaredRanks>& by_content = prepare.roster[i].by_content;
    if (!add_declared(reader, by_content, prepare.weight_fingerprints.size(), seen)) {
      return false;
    }
    std::int64_t lowest = kPeerRanks;
    std::size_t ranks = 0;
    for (const engine::DeclaredRanks& declared : by_content) {
      lowest = std::min(lowest, declared.ranks.front().first);
      for (const engine::RankSpan& span : declared.ranks) {
        ranks += static_cast<std::size_t>(span.second);
      }
    }
    if (!is_for_ranks(reader, prepare.roster[i].devices, ranks)) {
      return false;
    }
    if (lowest <= least) {
      return fail_at(
          reader, "by_content", "begins with rank {}; expected more than {}, that of the node before", lowest, least
      );
    }
    least = lowest;
  }
  return true;
}

bool is_consistent(FieldReader& reader, const engine::PeerAsk& ask) {
  const engine::Ask& terms = ask.terms;
  if (!std::isfinite(terms.scale) || terms.scale <= 0) {
    return fail_at(reader, "scale", "is {}; expected a finite number above 0", terms.scale);
  }
  const bool measures = terms.kind == engine::Ask::Kind::Finish || terms.kind == engine::Ask::Kind::NormOnly;
  if (measures == ask.sites.empty()) {
    return measures ? fail_at(reader, "sites", "is missing; expected the sums of this node for finish and norm")
                    : fail_at(reader, "sites", "does not belong to the kinds clip and import");
  }
  const bool imports = terms.kind == engine::Ask::Kind::Import;
  if (imports != !terms.state_digest.empty()) {
    return imports ? fail_at(reader, "state_digest", "is missing; expected that of the imported state")
                   : fail_at(reader, "state_digest", "belongs to the kind import only");
  }
  return true;
}

bool is_consistent(FieldReader& reader, const engine::PeerRows& rows) {
  if (!are_not_both(reader, !rows.box_hashes.empty(), !rows.rows.empty(), "box_hashes", "rows")) {
    return false;
  }
  std::int64_t boxes = 0;
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    const bool same =
        i != 0 && rows.rows[i].tensor == rows.rows[i - 1].tensor && rows.rows[i].box == rows.rows[i - 1].box;
    boxes += same ? 0 : 1;
  }
  return boxes <= kComparedBoxes ||
         fail_at(reader, "rows", "has rows of {} boxes; expected at most {}, box by box", boxes, kComparedBoxes);
}

bool is_consistent(FieldReader& reader, const engine::PeerCompare& compare) {
  if (compare.classes.empty() && compare.boxes.empty()) {
    return reader.fail("has neither classes nor boxes; expected one of the two");
  }
  return are_not_both(reader, !compare.classes.empty(), !compare.boxes.empty(), "classes", "boxes");
}

bool is_consistent(FieldReader& reader, const engine::PeerPolicies& policies) {
  if (policies.state.empty() && (policies.page != 0 || policies.pages != 1)) {
    return fail_at(
        reader, "state", "is missing on page {} of {}; expected it, or page 0 of 1", policies.page, policies.pages
    );
  }
  return is_page(reader, policies.page, policies.pages);
}

bool is_consistent(FieldReader& reader, const engine::PeerDeclaration& declaration) {
  return is_page(reader, declaration.page, declaration.pages);
}

}  // namespace gradsync::rpc
