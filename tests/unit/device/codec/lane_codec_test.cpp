// Every command and report of a lane as bytes and back, and what is refused.

#include "device/lane_codec.hpp"

#include "unit/device/codec/lane_samples.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace gradsync::device {
namespace {

using testing::HasSubstr;

std::vector<UniqueFd> duplicates(const std::vector<UniqueFd>& fds) {
  std::vector<UniqueFd> copies;
  for (const UniqueFd& fd : fds) {
    copies.emplace_back(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  }
  return copies;
}

/// What `decode` says of bytes that it must refuse.
std::string refusal(const std::vector<std::byte>& bytes, std::vector<UniqueFd> fds = {}) {
  const Result<LaneCommand> decoded = decode_command(bytes, std::move(fds));
  return decoded.has_error() ? decoded.error().message : "taken";
}

template <typename T>
void overwrite(std::vector<std::byte>& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

constexpr std::size_t kHeadBytes = 24;

template <typename Variant>
std::set<std::size_t> kinds_in(const std::vector<Variant>& samples) {
  std::set<std::size_t> kinds;
  for (const Variant& sample : samples) {
    kinds.insert(sample.index());
  }
  return kinds;
}

TEST(LaneCodec, has_a_sample_of_every_alternative) {
  EXPECT_EQ(kinds_in(sample_commands()).size(), std::variant_size_v<LaneCommand>);
  EXPECT_EQ(kinds_in(sample_reports()).size(), std::variant_size_v<LaneReport>);
}

TEST(LaneCodec, the_comparison_sees_every_field_that_differs) {
  std::vector<LaneReport> one = sample_reports();
  for (LaneReport& report : one) {
    if (auto* finished = std::get_if<Finished>(&report)) {
      finished->math.nonfinite[0].inputs[1].second += 1;
    }
  }
  EXPECT_TRUE(same(sample_reports(), sample_reports()));
  EXPECT_FALSE(same(one, sample_reports()));
}

TEST(LaneCodec, every_command_comes_back_as_it_was) {
  std::vector<LaneCommand> commands = sample_commands();
  for (std::size_t i = 0; i < commands.size(); ++i) {
    // The descriptor moves into the message; a duplicate of it stands in for what was sent.
    LaneMessage message = encode(std::move(commands[i]));
    const std::vector<UniqueFd> kept = duplicates(message.fds);
    Result<LaneCommand> decoded = decode_command(message.bytes, std::move(message.fds));
    ASSERT_TRUE(decoded.has_value()) << i << ": " << decoded.error().message;
    LaneCommand expected = std::move(sample_commands()[i]);
    std::visit(
        [&](auto& command) {
          const auto stands_in = [&](UniqueFd& fd, std::size_t number) {
            EXPECT_EQ(fd.valid(), number < kept.size());
            if (number < kept.size()) {
              fd.reset(::fcntl(kept[number].get(), F_DUPFD_CLOEXEC, 0));
            }
          };
          if constexpr (requires { command.fd; }) {
            stands_in(command.fd, 0);
          } else if constexpr (requires { command.connections; }) {
            stands_in(command.connections.at(0).partials, 0);
            stands_in(command.connections.at(0).results, 1);
          }
        },
        expected
    );
    EXPECT_TRUE(same(*decoded, expected)) << "command " << i << ", alternative " << expected.index();
  }
}

TEST(LaneCodec, every_report_comes_back_as_it_was) {
  const std::vector<LaneReport> reports = sample_reports();
  for (std::size_t i = 0; i < reports.size(); ++i) {
    LaneMessage message = encode(reports[i]);
    EXPECT_TRUE(message.fds.empty());
    const Result<LaneReport> decoded = decode_report(message.bytes, {});
    ASSERT_TRUE(decoded.has_value()) << i << ": " << decoded.error().message;
    EXPECT_TRUE(same(*decoded, reports[i])) << "report " << i << ", alternative " << reports[i].index();
  }
}

TEST(LaneCodec, bytes_that_end_early_or_late_are_refused_at_every_length) {
  for (LaneCommand& command : sample_commands()) {
    const LaneMessage message = encode(std::move(command));
    for (std::size_t length = 0; length < message.bytes.size(); ++length) {
      std::vector<std::byte> cut(message.bytes.begin(), message.bytes.begin() + static_cast<std::ptrdiff_t>(length));
      EXPECT_NE(refusal(cut, duplicates(message.fds)), "taken") << length;
      if (length >= kHeadBytes) {  // also where the head says that this is all
        overwrite<std::uint64_t>(cut, 16, length - kHeadBytes);
        EXPECT_THAT(refusal(cut, duplicates(message.fds)), HasSubstr("left")) << length;
      }
    }
    std::vector<std::byte> longer = message.bytes;
    longer.push_back(std::byte{0});
    EXPECT_THAT(refusal(longer, duplicates(message.fds)), HasSubstr("of payload, and has"));
    overwrite<std::uint64_t>(longer, 16, longer.size() - kHeadBytes);
    EXPECT_THAT(refusal(longer, duplicates(message.fds)), HasSubstr("1 bytes and 0 descriptors are left over"));
  }
}

TEST(LaneCodec, names_what_is_wrong_with_a_head) {
  const std::vector<std::byte> good = encode(LaneCommand{UnloadPlan{8}}).bytes;
  ASSERT_EQ(refusal(good), "taken");
  const auto changed = [&](std::size_t at, auto value) {
    std::vector<std::byte> bytes = good;
    overwrite(bytes, at, value);
    return refusal(bytes);
  };
  EXPECT_THAT(refusal({}), HasSubstr("shorter than its head"));
  EXPECT_THAT(changed(0, 'g'), HasSubstr("does not begin like one"));
  EXPECT_THAT(changed(4, std::uint16_t{kLaneCodecVersion + 1}), HasSubstr("it has version 10, this process reads"));
  EXPECT_THAT(changed(6, std::uint8_t{1}), HasSubstr("it has kind 1"));
  EXPECT_THAT(changed(7, std::uint8_t{std::variant_size_v<LaneCommand>}), HasSubstr("alternatives below 14"));
  EXPECT_THAT(changed(8, std::uint32_t{1}), HasSubstr("it says 1 descriptors, 0 came with it"));
  EXPECT_THAT(changed(12, std::uint32_t{1}), HasSubstr("does not begin like one"));
  const Result<LaneReport> as_report = decode_report(good, {});
  ASSERT_TRUE(as_report.has_error());
  EXPECT_FALSE(as_report.error().hint.empty());
}

TEST(LaneCodec, a_count_beyond_the_bytes_is_refused_before_anything_is_allocated) {
  std::vector<std::byte> bytes = encode(LaneCommand{ReduceBucket{1, 2, 3, {}, false, false}}).bytes;
  constexpr std::size_t kCount = kHeadBytes + 8 + 8 + 4;
  for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    overwrite(bytes, kCount, count);
    EXPECT_THAT(refusal(bytes), HasSubstr("elements of at least 12 bytes each, 2 bytes are left"));
  }
}

TEST(LaneCodec, values_outside_an_enumeration_or_a_bool_are_refused) {
  std::vector<std::byte> width = encode(LaneCommand{SetWidth{true}}).bytes;
  width.back() = std::byte{2};
  EXPECT_THAT(refusal(width), HasSubstr("byte 0: 2 where at most 1 is possible"));

  LanePlan plan;
  plan.buckets = {{plan::DType::Float64, {}, 1}};
  std::vector<std::byte> load = encode(LaneCommand{LoadPlan{1, plan}}).bytes;
  constexpr std::size_t kDtype = kHeadBytes + 8 + 8 + 8 + 3 * 8 + 8;
  ASSERT_EQ(load[kDtype], static_cast<std::byte>(plan::DType::Float64));
  load[kDtype] = std::byte{4};
  EXPECT_THAT(refusal(load), HasSubstr("4 where at most 3 is possible"));
}

TEST(LaneCodec, descriptors_that_are_missing_or_too_many_are_refused) {
  const LaneMessage with = encode(LaneCommand{MapBuffer{1, sample_fd(), 2}});
  ASSERT_EQ(with.fds.size(), 1U);
  EXPECT_EQ(refusal(with.bytes, duplicates(with.fds)), "taken");
  EXPECT_THAT(refusal(with.bytes), HasSubstr("it says 1 descriptors, 0 came"));
  std::vector<std::byte> says_none = with.bytes;
  overwrite(says_none, 8, std::uint32_t{0});
  EXPECT_THAT(refusal(says_none), HasSubstr("a descriptor is missing"));

  std::vector<std::byte> without = encode(LaneCommand{MapBuffer{1, UniqueFd(), 2}}).bytes;
  overwrite(without, 8, std::uint32_t{1});
  EXPECT_THAT(refusal(without, duplicates(with.fds)), HasSubstr("0 bytes and 1 descriptors are left over"));
}

}  // namespace
}  // namespace gradsync::device
