// Any bytes as a message of a lane, and as the payload of one whose head is right. What is taken is what would be
// written again, and what is allocated on the way is bounded by the size of the message. The first byte chooses command
// or report, the alternative, and how many descriptors come with it.

#include "device/lane_codec.hpp"
#include "fuzz/fuzz.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <sanitizer/allocator_interface.h>

namespace {

using namespace gradsync;          // NOLINT(google-build-using-namespace): a main file
using namespace gradsync::device;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kHeadBytes = 24;
constexpr std::size_t kMostPerByte = 16;
constexpr std::size_t kMostBesides = 4096;  ///< messages of errors, the list of descriptors

std::size_t allocated = 0;
bool counting = false;

void count_allocation(const volatile void* /*pointer*/, std::size_t size) { allocated += counting ? size : 0; }

void ignore_free(const volatile void* /*pointer*/) {}

std::vector<UniqueFd> descriptors(std::size_t count) {
  std::vector<UniqueFd> fds;
  for (std::size_t i = 0; i < count; ++i) {
    fds.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  return fds;
}

void check(bool is_report, const std::vector<std::byte>& bytes, std::size_t fds) {
  std::vector<UniqueFd> given = descriptors(fds);
  allocated = 0;
  counting = true;
  const auto examine = [&](auto decoded) {
    counting = false;
    REQUIRE(allocated <= kMostPerByte * bytes.size() + kMostBesides);
    if (decoded.has_error()) {
      REQUIRE(!decoded.error().message.empty() && !decoded.error().hint.empty());
      return;
    }
    const LaneMessage again = encode(std::move(*decoded));
    REQUIRE(again.bytes == bytes);
    REQUIRE(again.fds.size() == fds);
  };
  if (is_report) {
    examine(decode_report(bytes, std::move(given)));
  } else {
    examine(decode_command(bytes, std::move(given)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int installed = __sanitizer_install_malloc_and_free_hooks(count_allocation, ignore_free);
  REQUIRE(installed != 0);
  if (size == 0) {
    return 0;
  }
  const bool is_report = (data[0] & 1U) != 0;
  const std::size_t fds = (data[0] >> 1U) % 3;
  const auto alternative = static_cast<std::uint8_t>(data[0] >> 4U);
  std::vector<std::byte> payload(size - 1);
  std::transform(data + 1, data + size, payload.begin(), [](std::uint8_t byte) { return std::byte{byte}; });
  check(is_report, payload, fds);

  std::vector<std::byte> message(kHeadBytes);
  std::memcpy(message.data(), "GSLN", 4);
  std::memcpy(message.data() + 4, &kLaneCodecVersion, sizeof(kLaneCodecVersion));
  message[6] = std::byte{is_report};
  message[7] = std::byte{alternative};
  message[8] = static_cast<std::byte>(fds);
  const std::uint64_t payload_bytes = payload.size();
  std::memcpy(message.data() + 16, &payload_bytes, sizeof(payload_bytes));
  message.insert(message.end(), payload.begin(), payload.end());
  check(is_report, message, fds);
  return 0;
}
