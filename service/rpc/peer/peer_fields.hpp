#pragma once
// How messages between daemons spell what JSON has no form for, or a form that is too long: words and digests in hex,
// ranks as spans, texts that may be cut. A spelling is a struct with `read` and `write`; `required_as<Spelling>` and
// `optional_as<Spelling>` describe a member with it. Texts that people read are made to fit when they are written.
// Ranks as spans are written in ascending order, each once. Lists are counted before an item of them is read.

#include "device/math/norm_sum.hpp"
#include "device/stats/stats_plan.hpp"
#include "engine/peers/peer_message.hpp"
#include "plan/transfer/communicator_name.hpp"
#include "rpc/json/codec.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace gradsync::rpc {

inline constexpr std::int64_t kPeerNodes = 256;
inline constexpr std::int64_t kPeerRanks = 4096;
inline constexpr std::int64_t kPeerTensors = 10'000'000;  ///< no daemon takes more, whatever limits.tensors says
inline constexpr std::int64_t kNamedTensors = 20;
inline constexpr std::int64_t kComparedBoxes = 64;
inline constexpr auto kNodeCommunicators = static_cast<std::int64_t>(engine::kMostOffers);
inline constexpr Bounds kCommunicatorName{1, static_cast<std::int64_t>(plan::kCommunicatorNameBytes)};
inline constexpr std::int64_t kStateBytes = 2 << 20;  ///< of a page of policies; its text has twice as many digits
inline constexpr Bounds kPeerEpoch{1, 0xFFFF'FFFF};   ///< half a word: that of an attempt has both its numbers
inline constexpr Bounds kRankNumber{0, kPeerRanks - 1};
inline constexpr Bounds kRankCount{0, kPeerRanks};
inline constexpr Bounds kHostText{1, 64};
inline constexpr Bounds kTransportText{1, 16};
inline constexpr Bounds kNotZero{1, Bounds{}.most};

/// A member of a struct, spelt otherwise than its type is.
template <typename Spelling, typename T>
struct SpeltAs {
  T& value;
};

template <typename Spelling, typename T>
struct Codec<SpeltAs<Spelling, T>> {
  static bool read(FieldReader& reader, Value value, SpeltAs<Spelling, T>& out, Bounds bounds) {
    return Spelling::read(reader, value, out.value, bounds);
  }

  static void write(JsonWriter& writer, const SpeltAs<Spelling, T>& spelt) { Spelling::write(writer, spelt.value); }
};

/// An optional text or list is left out where it is empty.
template <typename Spelling, typename T>
struct IsAbsent<SpeltAs<Spelling, T>> {
  static bool test(const SpeltAs<Spelling, T>& spelt) {
    if constexpr (requires { spelt.value.has_value(); }) {
      return !spelt.value.has_value();
    } else {
      return spelt.value.empty();
    }
  }
};

template <typename Spelling, typename T>
void required_as(auto& visitor, std::string_view name, T& member, const char* what, Bounds bounds = {}) {
  SpeltAs<Spelling, T> spelt{member};
  visitor.required(name, spelt, what, bounds);
}

template <typename Spelling, typename T>
void optional_as(auto& visitor, std::string_view name, T& member, const char* what, Bounds bounds = {}) {
  SpeltAs<Spelling, T> spelt{member};
  visitor.optional(name, spelt, what, bounds);
}

/// As the type of the member is spelt, for lists that are left out where they are empty.
struct Usual {
  template <typename T>
  static bool read(FieldReader& reader, Value value, T& out, Bounds bounds) {
    return Codec<T>::read(reader, value, out, bounds);
  }

  template <typename T>
  static void write(JsonWriter& writer, const T& value) {
    Codec<T>::write(writer, value);
  }
};

/// As `Spelling` spells it, where it is given.
template <typename Spelling>
struct Given {
  template <typename T>
  static bool read(FieldReader& reader, Value value, std::optional<T>& out, Bounds bounds) {
    return Spelling::read(reader, value, out.emplace(), bounds);
  }

  template <typename T>
  static void write(JsonWriter& writer, const std::optional<T>& value) {
    Spelling::write(writer, *value);
  }
};

/// As the list itself.
struct SharedItems {
  template <typename T>
  static bool read(FieldReader& reader, Value value, SharedList<T>& out, Bounds bounds) {
    return Codec<std::vector<T>>::read(reader, value, out.own(), bounds);
  }

  template <typename T>
  static void write(JsonWriter& writer, const SharedList<T>& value) {
    Codec<std::vector<T>>::write(writer, std::vector<T>(value.begin(), value.end()));
  }
};

using RankCountList = std::vector<std::pair<std::int64_t, std::uint64_t>>;

#define GRADSYNC_SPELLING(Name, Type)                                             \
  struct Name {                                                                   \
    static bool read(FieldReader& reader, Value value, Type& out, Bounds bounds); \
    static void write(JsonWriter& writer, const Type& value);                     \
  }
/// 16 lower-case hex digits. Bounds from 1 on refuse 0, which names no attempt.
GRADSYNC_SPELLING(HexWord, std::uint64_t);
GRADSYNC_SPELLING(HexWords, std::vector<std::uint64_t>);
GRADSYNC_SPELLING(PortNumber, std::uint16_t);
GRADSYNC_SPELLING(VersionNumber, int);          ///< above 0
GRADSYNC_SPELLING(HexDigest, std::string);      ///< 16 lower-case hex digits
GRADSYNC_SPELLING(HexLongDigest, std::string);  ///< 32 lower-case hex digits
GRADSYNC_SPELLING(HexLongDigests, std::vector<std::string>);
GRADSYNC_SPELLING(HexBytes, std::string);  ///< two lower-case hex digits for each byte; bounds count the bytes
GRADSYNC_SPELLING(HexUniqueId, device::NcclUniqueId);         ///< two lower-case hex digits for each of its 128 bytes
GRADSYNC_SPELLING(RankSpans, std::vector<engine::RankSpan>);  ///< ascending and apart
GRADSYNC_SPELLING(RanksAsSpans, std::vector<std::int64_t>);   ///< the same, each rank for itself in memory
GRADSYNC_SPELLING(RankList, std::vector<std::int64_t>);       ///< one number per rank
GRADSYNC_SPELLING(RankCounts, RankCountList);                 ///< [rank, count] each
GRADSYNC_SPELLING(TensorSpanList, engine::TensorSpans);       ///< ascending and apart
GRADSYNC_SPELLING(Fingerprints, std::vector<engine::WeightFingerprints>);  ///< of at most 64 bytes each
#undef GRADSYNC_SPELLING

/// `text` as a reader takes it: in UTF-8, with a space for each control character, at most `most` bytes, "…" at a cut.
[[nodiscard]] std::string tidy_text(std::string_view text, std::size_t most);

/// A text that people read, of any origin: it is made to fit when it is written.
template <std::size_t Most>
struct TidyText {
  static bool read(FieldReader& reader, Value value, std::string& out, Bounds) {
    return Codec<std::string>::read(reader, value, out, {0, static_cast<std::int64_t>(Most)});
  }

  static void write(JsonWriter& writer, const std::string& text) {
    writer.value(std::string_view(tidy_text(text, Most)));
  }
};

/// Names of tensors, the first 20.
struct NamedTensors {
  static bool read(FieldReader& reader, Value value, std::vector<std::string>& out, Bounds);
  static void write(JsonWriter& writer, const std::vector<std::string>& names);
};

/// 96 hex digits: high, low, scale, maximum, then the counts of non-finite values and of NaN.
template <>
struct Codec<device::TensorSum> {
  static bool read(FieldReader& reader, Value value, device::TensorSum& out, Bounds);
  static void write(JsonWriter& writer, const device::TensorSum& sum);
};

/// 128 hex digits: its members in their order.
template <>
struct Codec<device::StatsRow> {
  static bool read(FieldReader& reader, Value value, device::StatsRow& out, Bounds);
  static void write(JsonWriter& writer, const device::StatsRow& row);
};

/// Two numbers, neither below 0.
template <typename First, typename Second>
struct Codec<std::pair<First, Second>> {
  static bool read(FieldReader& reader, Value value, std::pair<First, Second>& out, Bounds) {
    if (!value.is(TokenType::Array)) {
      return reader.wrong_type(value, "a list of 2 numbers");
    }
    if (const std::int64_t items = value.item_count(); items != 2) {
      return reader.fail("is a list of " + std::to_string(items) + " items; expected 2 numbers");
    }
    std::size_t index = 0;
    return value.each_item([&](Value item) {
      const FieldReader::Step step(reader, index);
      return index++ == 0 ? Codec<First>::read(reader, item, out.first, kNatural)
                          : Codec<Second>::read(reader, item, out.second, kNatural);
    });
  }

  static void write(JsonWriter& writer, const std::pair<First, Second>& pair) {
    writer.begin_array();
    Codec<First>::write(writer, pair.first);
    Codec<Second>::write(writer, pair.second);
    writer.end_array();
  }
};

}  // namespace gradsync::rpc
