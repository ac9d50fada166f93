#include "device/stats/sums_check.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace gradsync::device {

namespace {

using Key = std::uint64_t;  ///< rank and copy

Key key_of(const LaneMember& member) { return Key{member.rank} << 32 | member.copy; }

std::uint32_t rank_of(Key key) { return static_cast<std::uint32_t>(key >> 32); }

std::uint32_t copy_of(Key key) { return static_cast<std::uint32_t>(key); }

std::vector<Key> sorted_keys(const std::vector<LaneMember>& members) {
  std::vector<Key> keys(members.size());
  std::transform(members.begin(), members.end(), keys.begin(), key_of);
  std::sort(keys.begin(), keys.end());
  return keys;
}

class Uses {
 public:
  Uses(const LanePlan& layout, const std::vector<BufferView>& buffers, std::size_t index)
      : layout_(layout), buffers_(buffers), index_(index) {}

  SumsUse of(const std::vector<LaneSum>& sums) {
    for (const LaneSum& sum : sums) {
      check_fit(!sum.sources.empty() && !sum.destinations.empty(), [&] {
        return fmt::format("a sum of sums[{}] has no source or no destination", index_);
      });
      const std::vector<Key> destinations = sorted_keys(sum.destinations);
      for (const Key source : sorted_keys(sum.sources)) {
        const bool written = std::binary_search(destinations.begin(), destinations.end(), source);
        add(source, false, written ? std::nullopt : std::optional(rank_of(source)));
      }
      for (const Key destination : destinations) {
        add(destination, true, std::nullopt);
      }
    }
    check_once(sums, &LaneSum::sources, "source");
    check_once(sums, &LaneSum::destinations, "destination");
    SumsUse use;
    for (const auto& [place, arena] : arenas_) {
      use.copies = std::max(use.copies, arena.copy);
      use.arenas.push_back(arena);
    }
    return use;
  }

 private:
  void add(Key member, bool writes, std::optional<std::uint32_t> only_read) {
    const std::uint32_t rank = rank_of(member);
    check_fit(rank < buffers_.size(), [&] {
      return fmt::format("sums[{}] name rank {} of {}", index_, rank, buffers_.size());
    });
    if (!layout_.nodes.node_of_rank.empty() && layout_.nodes.node_of_rank[rank] != layout_.nodes.node) {
      return;  // on another node, which checks it
    }
    const std::uint32_t arena = layout_.arena_of_rank[rank];
    const std::uint64_t size = buffers_[rank].size_bytes;
    const auto [found, added] = arenas_.try_emplace({arena, copy_of(member), writes});
    ArenaUse& use = found->second;
    if (added || size < use.size_bytes) {
      use = {arena, copy_of(member), writes, size, rank, use.only_read};
    }
    use.only_read = use.only_read ? use.only_read : only_read;
  }

  void check_once(const std::vector<LaneSum>& sums, std::vector<LaneMember> LaneSum::*side, const char* name) const {
    std::vector<LaneMember> all;
    for (const LaneSum& sum : sums) {
      all.insert(all.end(), (sum.*side).begin(), (sum.*side).end());
    }
    const std::vector<Key> keys = sorted_keys(all);
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    check_fit(twice == keys.end(), [&] {
      return fmt::format(
          "sums[{}] name rank {} twice as {} of copy {}", index_, rank_of(*twice), name, copy_of(*twice)
      );
    });
  }

  const LanePlan& layout_;
  const std::vector<BufferView>& buffers_;
  std::size_t index_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, bool>, ArenaUse> arenas_;
};

}  // namespace

std::vector<SumsUse> uses_of_sums(const LanePlan& layout, const std::vector<BufferView>& buffers) {
  std::vector<SumsUse> uses;
  uses.reserve(layout.sums.size());
  for (std::size_t index = 0; index < layout.sums.size(); ++index) {
    uses.push_back(Uses(layout, buffers, index).of(layout.sums[index]));
  }
  return uses;
}

}  // namespace gradsync::device
