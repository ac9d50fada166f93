#include "policy/state_bytes.hpp"

#include "base/text/hash.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstring>

namespace gradsync::policy {

namespace {

static_assert(std::endian::native == std::endian::little, "the numbers of a state are little-endian");

constexpr std::string_view kMagic = "gradsync policy\n";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeadBytes = kMagic.size() + 2 * sizeof(std::uint32_t) + sizeof(std::uint64_t);

template <typename T>
void append(std::string& bytes, const T* values, std::size_t count) {
  bytes.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

template <typename T>
T value_at(std::string_view bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

}  // namespace

Error damaged_state(std::string what) {
  return invalid_params("state", std::move(what), "take the state of an earlier checkpoint, or begin anew without one");
}

void write_state(const State& state, std::string& bytes) {
  bytes.assign(kMagic);
  const std::uint32_t head[] = {kVersion, static_cast<std::uint32_t>(state.settings.size())};
  const std::uint64_t count = state.numbers.size();
  append(bytes, head, 2);
  append(bytes, &count, 1);
  bytes += state.settings;
  append(bytes, state.numbers.data(), state.numbers.size());
  const std::uint64_t checksum = hash64(bytes);
  append(bytes, &checksum, 1);
}

Result<State> read_state(std::string_view bytes, std::string_view settings) {
  if (bytes.size() < kHeadBytes + sizeof(std::uint64_t) || !bytes.starts_with(kMagic)) {
    return damaged_state(fmt::format("{} bytes are not the state of a policy", bytes.size()));
  }
  const auto version = value_at<std::uint32_t>(bytes, kMagic.size());
  if (version != kVersion) {
    return damaged_state(fmt::format("the state has version {}, this daemon reads version {}", version, kVersion));
  }
  const std::size_t words = value_at<std::uint32_t>(bytes, kMagic.size() + sizeof(std::uint32_t));
  const std::uint64_t count = count_of(bytes);
  const std::size_t rest = bytes.size() - kHeadBytes - sizeof(std::uint64_t);
  if (words > rest || (rest - words) % sizeof(double) != 0 || (rest - words) / sizeof(double) != count) {
    return damaged_state(fmt::format("the state says it has {} numbers, and has {} bytes", count, bytes.size()));
  }
  const std::string_view content = bytes.substr(0, bytes.size() - sizeof(std::uint64_t));
  if (hash64(content) != value_at<std::uint64_t>(bytes, content.size())) {
    return damaged_state("the checksum of the state is wrong: it was damaged after it was saved");
  }
  State state;
  state.settings = content.substr(kHeadBytes, words);
  if (state.settings != settings) {
    return invalid_params(
        "state",
        fmt::format("the state is of policy {}, the clip group has {}", state.settings, settings),
        "declare the policy that the state is of, or begin anew without it"
    );
  }
  state.numbers.reserve(count);
  for (std::size_t at = kHeadBytes + words; at < content.size(); at += sizeof(double)) {
    state.numbers.push_back(value_at<double>(content, at));
  }
  return state;
}

std::uint64_t count_of(std::string_view bytes) {
  return bytes.size() < kHeadBytes ? 0 : value_at<std::uint64_t>(bytes, kMagic.size() + 2 * sizeof(std::uint32_t));
}

}  // namespace gradsync::policy
