#include "device/lane_codec.hpp"

#include "device/codec/lane_fields.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>
#include <variant>

namespace gradsync::device {

namespace {

constexpr std::array<char, 4> kMagic{'G', 'S', 'L', 'N'};

enum class Kind : std::uint8_t { Command, Report };

struct Head {
  std::array<char, 4> magic = kMagic;
  std::uint16_t version = kLaneCodecVersion;
  Kind kind = Kind::Command;
  std::uint8_t alternative = 0;
  std::uint32_t descriptors = 0;
  std::uint32_t zero = 0;  ///< so that the struct has no padding
  std::uint64_t payload_bytes = 0;
};

static_assert(std::has_unique_object_representations_v<Head> && sizeof(Head) == 24);

/// `message` is a LaneCommand, or a const LaneReport.
template <typename Message>
LaneMessage encoded(Kind kind, Message& message) {
  static_assert(std::variant_size_v<std::remove_const_t<Message>> <= 256);
  Head head;
  ByteWriter writer;
  writer.bytes.resize(sizeof(Head));
  std::visit([&](auto& value) { writer(value); }, message);
  head.kind = kind;
  head.alternative = static_cast<std::uint8_t>(message.index());
  head.descriptors = static_cast<std::uint32_t>(writer.fds.size());
  head.payload_bytes = writer.bytes.size() - sizeof(Head);
  std::memcpy(writer.bytes.data(), &head, sizeof(Head));
  return {std::move(writer.bytes), std::move(writer.fds)};
}

Error refused(std::span<const std::byte> bytes, const std::string& found) {
  return make_error(
      ErrorCode::InternalError,
      fmt::format("a lane message of {} bytes cannot be read: {}", bytes.size(), found),
      "supervisor and worker must be the same gradsyncd"
  );
}

/// Says what is wrong with the head; empty: nothing.
std::string problem_of(const Head& head, Kind kind, std::size_t alternatives, std::size_t fds, std::size_t payload) {
  if (head.magic != kMagic || head.zero != 0) {
    return "it does not begin like one";
  }
  if (head.version != kLaneCodecVersion) {
    return fmt::format("it has version {}, this process reads version {}", head.version, kLaneCodecVersion);
  }
  if (head.kind != kind || head.alternative >= alternatives) {
    return fmt::format(
        "it has kind {}, alternative {}; alternatives below {} of kind {} are known",
        static_cast<int>(head.kind),
        head.alternative,
        alternatives,
        static_cast<int>(kind)
    );
  }
  if (head.descriptors != fds) {
    return fmt::format("it says {} descriptors, {} came with it", head.descriptors, fds);
  }
  if (head.payload_bytes != payload) {
    return fmt::format("it says {} bytes of payload, and has {}", head.payload_bytes, payload);
  }
  return {};
}

/// A new alternative of that number.
template <typename Variant, std::size_t... Index>
Variant alternative_of(std::size_t number, std::index_sequence<Index...> /*all*/) {
  Variant variant;
  ((Index == number ? static_cast<void>(variant.template emplace<Index>()) : void()), ...);
  return variant;
}

template <typename Variant>
Result<Variant> decoded(Kind kind, std::span<const std::byte> bytes, std::vector<UniqueFd> fds) {
  constexpr std::size_t kAlternatives = std::variant_size_v<Variant>;
  if (bytes.size() < sizeof(Head)) {
    return refused(bytes, "it is shorter than its head");
  }
  Head head;
  std::memcpy(&head, bytes.data(), sizeof(Head));
  const std::span<const std::byte> payload = bytes.subspan(sizeof(Head));
  if (std::string problem = problem_of(head, kind, kAlternatives, fds.size(), payload.size()); !problem.empty()) {
    return refused(bytes, problem);
  }
  ByteReader reader(payload, std::move(fds));
  Variant variant = alternative_of<Variant>(head.alternative, std::make_index_sequence<kAlternatives>());
  std::visit([&](auto& value) { reader(value); }, variant);
  if (std::string problem = reader.problem(); !problem.empty()) {
    return refused(bytes, problem);
  }
  return variant;
}

}  // namespace

LaneMessage encode(LaneCommand command) { return encoded(Kind::Command, command); }

LaneMessage encode(const LaneReport& report) { return encoded(Kind::Report, report); }

Result<LaneCommand> decode_command(std::span<const std::byte> bytes, std::vector<UniqueFd> fds) {
  return decoded<LaneCommand>(Kind::Command, bytes, std::move(fds));
}

Result<LaneReport> decode_report(std::span<const std::byte> bytes, std::vector<UniqueFd> fds) {
  return decoded<LaneReport>(Kind::Report, bytes, std::move(fds));
}

}  // namespace gradsync::device
