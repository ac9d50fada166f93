#include "engine/policies/policy_file_bytes.hpp"

#include "base/text/hash.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <utility>

namespace gradsync::engine {

namespace {

static_assert(std::endian::native == std::endian::little, "the numbers of a policy file are little-endian");

constexpr std::string_view kFileMagic = "gradsync states\n";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kVersionAt = kFileMagic.size();
constexpr std::size_t kFileSlotBytesAt = kVersionAt + 2 * sizeof(std::uint32_t);
constexpr std::size_t kStampBytes = 2 * sizeof(std::uint64_t);
constexpr std::size_t kHeadBytes = kStampBytes + sizeof(std::uint64_t);
constexpr std::size_t kTailBytes = sizeof(std::uint64_t) + kStampBytes;
static_assert(kHeadBytes + kTailBytes == kSlotFrameBytes);

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T value_at(std::string_view bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

Error damaged(std::string what) { return make_error(ErrorCode::InternalError, std::move(what)); }

/// Whether each byte is that of the word or of its complement, as a mark is that was being written over.
bool marks(std::uint64_t mark, std::uint64_t word) {
  constexpr std::uint64_t kByte = 0xFF;
  for (std::uint64_t differs = mark ^ word; differs != 0; differs >>= 8) {
    if ((differs & kByte) != 0 && (differs & kByte) != kByte) {
      return false;
    }
  }
  return true;
}

Result<StateSlot> read_slot(std::string_view bytes) {
  StateSlot slot;
  const auto word = value_at<std::uint64_t>(bytes, 0);
  const auto sequence = value_at<std::uint64_t>(bytes, sizeof(word));
  const auto size = value_at<std::uint64_t>(bytes, kStampBytes);
  if (word == 0 || size > bytes.size() - kSlotFrameBytes) {
    return slot;
  }
  const std::string_view content = bytes.substr(0, kHeadBytes + size);
  const auto mark = value_at<std::uint64_t>(bytes, content.size() + kStampBytes);
  if (value_at<std::uint64_t>(bytes, content.size() + sizeof(std::uint64_t)) != sequence || !marks(mark, word)) {
    return slot;
  }
  if (value_at<std::uint64_t>(bytes, content.size()) != hash64(content)) {
    return damaged(fmt::format("the checksum of the state that was stored with word {} is wrong", word));
  }
  slot.word = word;
  slot.sequence = sequence;
  slot.pending = mark != word;
  slot.image = bytes.substr(0, content.size() + kTailBytes);
  return slot;
}

}  // namespace

std::string_view StateSlot::state() const {
  return std::string_view(image).substr(kHeadBytes, image.size() - kSlotFrameBytes);
}

void StateSlot::fill(std::string_view state) {
  image.clear();
  append(image, word);
  append(image, sequence);
  append(image, std::uint64_t{state.size()});
  image += state;
  append(image, hash64(image));
  append(image, sequence);
  append(image, pending ? ~word : word);
}

void StateSlot::settle() {
  pending = false;
  image.resize(image.size() - kDoneMarkBytes);
  append(image, word);
}

std::string policy_file_header(std::uint32_t uid, std::string_view job, std::size_t slot_bytes) {
  std::string bytes(kFileMagic);
  append(bytes, kVersion);
  append(bytes, uid);
  append(bytes, std::uint64_t{slot_bytes});
  append(bytes, static_cast<std::uint32_t>(job.size()));
  append(bytes, std::uint32_t{0});
  bytes += job;
  append(bytes, hash64(bytes));
  if (bytes.size() > kPolicyFilePage) {
    return {};
  }
  bytes.resize(kPolicyFilePage);
  return bytes;
}

Result<PolicyFileContents> read_policy_file(std::string_view bytes, std::uint32_t uid, std::string_view job) {
  PolicyFileContents contents;
  if (bytes.empty()) {
    return contents;
  }
  if (bytes.size() < kPolicyFilePage || !bytes.starts_with(kFileMagic)) {
    return damaged(fmt::format("its {} bytes are not the states of a job's policies", bytes.size()));
  }
  const auto version = value_at<std::uint32_t>(bytes, kVersionAt);
  if (version > kVersion) {
    return make_error(
        ErrorCode::VersionMismatch, fmt::format("it has version {}, this daemon reads version {}", version, kVersion)
    );
  }
  if (version != kVersion) {
    return damaged(fmt::format("it has version {}, this daemon reads version {}", version, kVersion));
  }
  contents.slot_bytes = value_at<std::uint64_t>(bytes, kFileSlotBytesAt);
  if (bytes.substr(0, kPolicyFilePage) != policy_file_header(uid, job, contents.slot_bytes)) {
    return damaged("its header was damaged, or is of another job");
  }
  if (contents.slot_bytes < slot_bytes_for(0) || (bytes.size() - kPolicyFilePage) / 2 != contents.slot_bytes ||
      bytes.size() % 2 != 0) {
    return damaged(fmt::format("it has {} bytes, its slots have {} each", bytes.size(), contents.slot_bytes));
  }
  for (std::size_t slot = 0; slot < contents.slots.size(); ++slot) {
    Result<StateSlot> read = read_slot(bytes.substr(slot_offset(slot, contents.slot_bytes), contents.slot_bytes));
    if (!read) {
      return read.error();
    }
    contents.slots[slot] = std::move(*read);
  }
  return contents;
}

}  // namespace gradsync::engine
