#include "engine/policies/group_state_bytes.hpp"

#include "base/text/hash.hpp"
#include "plan/limits.hpp"
#include "policy/state_bytes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

namespace gradsync::engine {

namespace {

static_assert(std::endian::native == std::endian::little, "the numbers of a state are little-endian");
constexpr std::string_view kGroupsMagic = "gradsync groups\n";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string_view checksum_of(std::string_view state) {
  return state.substr(state.size() - std::min(state.size(), kChecksumBytes));
}

/// Takes a state apart; `complete` says whether it was one.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::string_view take(std::uint64_t size) {
    const std::string_view taken = take_unhashed(size);
    hashed_ += taken;
    return taken;
  }

  template <typename T>
  T number() {
    T value = 0;
    const std::string_view taken = take(sizeof(value));
    std::memcpy(&value, taken.data(), taken.size());
    return value;
  }

  std::vector<SavedGroup> groups() {
    std::vector<SavedGroup> groups;
    for (auto left = number<std::uint32_t>(); left > 0 && complete_; --left) {
      const auto name_bytes = number<std::uint32_t>();
      const auto policies = number<std::uint32_t>();
      complete_ = complete_ && name_bytes <= plan::kMaxNameBytes;
      SavedGroup& group = groups.emplace_back();
      group.name = take(name_bytes);
      for (std::uint32_t policy = 0; policy < policies && complete_; ++policy) {
        group.states.push_back(take_unhashed(number<std::uint64_t>()));
        hashed_ += checksum_of(group.states.back());
      }
    }
    return groups;
  }

  [[nodiscard]] bool ends_with_checksum() {
    const std::uint64_t expected = hash64(hashed_);
    return number<std::uint64_t>() == expected && complete_ && rest_.empty();
  }

 private:
  std::string_view take_unhashed(std::uint64_t size) {
    complete_ = complete_ && size <= rest_.size();
    const std::string_view taken = rest_.substr(0, complete_ ? size : 0);
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest_;
  std::string hashed_;
  bool complete_ = true;
};

}  // namespace

GroupStateWriter::GroupStateWriter(std::string& bytes, std::size_t groups) : bytes_(bytes) {
  bytes_.assign(kGroupsMagic);
  append(bytes_, kVersion);
  append(bytes_, static_cast<std::uint32_t>(groups));
}

void GroupStateWriter::begin_group(std::string_view name, std::size_t policies) {
  append(bytes_, static_cast<std::uint32_t>(name.size()));
  append(bytes_, static_cast<std::uint32_t>(policies));
  bytes_ += name;
}

void GroupStateWriter::add(std::string_view state) {
  append(bytes_, std::uint64_t{state.size()});
  hashed_.append(bytes_, unhashed_).append(checksum_of(state));
  bytes_ += state;
  unhashed_ = bytes_.size();
}

std::string GroupStateWriter::finish() {
  const std::uint64_t checksum = hash64(hashed_.append(bytes_, unhashed_));
  append(bytes_, checksum);
  return hex64(checksum);
}

Result<std::vector<SavedGroup>> read_group_states(std::string_view bytes) {
  Reader reader(bytes);
  if (reader.take(kGroupsMagic.size()) != kGroupsMagic) {
    return policy::damaged_state(fmt::format("{} bytes are not the state of a job's policies", bytes.size()));
  }
  if (const auto version = reader.number<std::uint32_t>(); version != kVersion) {
    return policy::damaged_state(
        fmt::format("the state has version {}, this daemon reads version {}", version, kVersion)
    );
  }
  std::vector<SavedGroup> groups = reader.groups();
  if (!reader.ends_with_checksum()) {
    return policy::damaged_state(fmt::format("the {} bytes of the state were damaged after it was saved", bytes.size())
    );
  }
  return groups;
}

}  // namespace gradsync::engine
