#include "sim/gpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace gradsync::sim {

namespace {

constexpr std::string_view kPrefix = "GPU-";

}  // namespace

std::int64_t Gpus::count_of(std::size_t node) const {
  const std::uint64_t kind = seed_ / 16;
  return kind % 4 == 0 ? 2 : 1 + static_cast<std::int64_t>((kind + node) % 3);
}

/// Neighbours share one, or each has another than its neighbour: sites are numbered by their lowest ranks.
std::string Gpus::of(std::size_t node, std::int64_t rank, std::int64_t ranks_here) const {
  if (!any_) {
    return {};
  }
  const std::int64_t place = rank % ranks_here;
  const std::int64_t gpus = std::min(count_of(node), ranks_here);
  return fmt::format("{}{}-{}", kPrefix, node, seed_ / 64 % 2 == 0 ? place % gpus : place * gpus / ranks_here);
}

std::int64_t Gpus::node_in(std::string_view text) {
  const std::size_t at = text.find(kPrefix);
  return at == std::string_view::npos ? -1 : std::atoll(std::string(text.substr(at + kPrefix.size())).c_str());
}

std::string Gpus::share(const std::shared_ptr<const Mapping>& memory, std::string gpu) {
  std::string handle = fmt::format("{:064}", memories_.size());
  memories_.emplace(handle, Memory{memory, std::move(gpu)});
  return handle;
}

}  // namespace gradsync::sim
