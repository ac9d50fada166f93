#include "plan/transfer/communicator_name.hpp"

#include "base/text/hash.hpp"
#include "base/text/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gradsync::plan {

std::string communicator_name(const std::vector<std::string>& axes, const std::vector<std::int64_t>& ranks) {
  std::string bytes;
  for (const std::int64_t rank : ranks) {
    for (int shift = 0; shift < 64; shift += 8) {
      bytes += static_cast<char>(static_cast<std::uint64_t>(rank) >> shift & 0xFF);
    }
  }
  std::string name = fmt::format("{}", fmt::join(axes, "+"));
  const std::string end = ":" + hex64(hash64(bytes));
  if (name.size() > kCommunicatorNameBytes - end.size()) {
    name.resize(kCommunicatorNameBytes - end.size());
    while (ends_within_character(name)) {
      name.pop_back();
    }
  }
  return name + end;
}

}  // namespace gradsync::plan
