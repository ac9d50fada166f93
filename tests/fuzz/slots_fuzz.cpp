// A policy file with two states, and what the input changes in it: what is taken is what would be written, and a slot
// that was not touched has its state. An input is a byte of choices (1: checksums and stamps are made right for what
// was changed, 2: cut short, 4: what is made right is pending), and changes: u16 place, u8 bytes, and these.

#include "base/text/hash.hpp"
#include "engine/policies/policy_file_bytes.hpp"
#include "fuzz/fuzz.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace {

using namespace gradsync;          // NOLINT(google-build-using-namespace): a main file
using namespace gradsync::engine;  // NOLINT(google-build-using-namespace)

constexpr std::uint32_t kUid = 1000;
constexpr std::uint64_t kWords[] = {0x1234567800000001, 0x1234567800000002};
constexpr std::size_t kSlotBytes = kPolicyFilePage;

std::string state_of(std::size_t slot) { return "state " + std::string(100 + 200 * slot, slot == 0 ? 'a' : 'b'); }

std::string whole_file() {
  std::string bytes = policy_file_header(kUid, "train", kSlotBytes);
  for (std::size_t slot = 0; slot < 2; ++slot) {
    StateSlot stored{kWords[slot], slot + 1, false, {}};
    stored.fill(state_of(slot));
    stored.image.resize(kSlotBytes);
    bytes += stored.image;
  }
  return bytes;
}

void change(std::string& bytes, std::string_view changes) {
  while (changes.size() >= 3) {
    std::uint16_t place = 0;
    std::memcpy(&place, changes.data(), sizeof(place));
    const std::size_t at = place % bytes.size();
    const std::size_t count =
        std::min({std::size_t{static_cast<std::uint8_t>(changes[2])}, changes.size() - 3, bytes.size() - at});
    bytes.replace(at, count, changes.substr(3, count));
    changes.remove_prefix(3 + count);
  }
}

/// The checksum and the stamp behind the state follow what is before it.
void mend(std::string& bytes, std::size_t slot, bool pending) {
  const std::size_t at = slot_offset(slot, kSlotBytes);
  StateSlot mended;
  mended.pending = pending;
  std::uint64_t size = 0;
  std::memcpy(&mended.word, bytes.data() + at, 8);
  std::memcpy(&mended.sequence, bytes.data() + at + 8, 8);
  std::memcpy(&size, bytes.data() + at + 16, 8);
  if (size <= kSlotBytes - kSlotFrameBytes) {
    mended.fill(bytes.substr(at + 24, size));
    bytes.replace(at, mended.image.size(), mended.image);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const bool mended = (data[0] & 1) != 0;
  const std::string before = whole_file();
  std::string bytes = before;
  change(bytes, fuzz::text_of(data + 1, size - 1));
  for (std::size_t slot = 0; mended && slot < 2; ++slot) {
    mend(bytes, slot, (data[0] & 4) != 0);
  }
  if ((data[0] & 2) != 0 && size > 2) {
    bytes.resize((data[1] + std::size_t{256} * data[2]) % bytes.size());
  }
  const Result<PolicyFileContents> contents = read_policy_file(bytes, kUid, "train");
  if (!contents) {
    REQUIRE(!contents.error().message.empty());
    return 0;
  }
  for (std::size_t slot = 0; slot < 2; ++slot) {
    const StateSlot& found = contents->slots[slot];
    const std::size_t at = slot_offset(slot, contents->slot_bytes);
    if (!bytes.empty() && bytes.compare(at, kSlotBytes, before, at, kSlotBytes) == 0) {
      REQUIRE(found.word == kWords[slot] && found.state() == state_of(slot));
    }
    if (found.word == 0) {
      continue;
    }
    REQUIRE(bytes.compare(at, found.image.size(), found.image) == 0);
    StateSlot again{found.word, found.sequence, false, {}};
    again.fill(found.state());
    if (found.pending) {  // its mark may be half of each: a cut while it was written over
      again.image.resize(again.image.size() - kDoneMarkBytes);
    }
    REQUIRE(found.image.starts_with(again.image));
    REQUIRE(found.pending || found.image.size() == again.image.size());
  }
  return 0;
}
