#pragma once
// Tells a connection over which nothing comes from a node whose ranks are late. It is looked at once a second for as
// long as one of its ends needs that.
//
// An end that waits for bytes and hears nothing asks the other one, over the connection itself, whether it is there,
// and gives up where nothing comes in ten looks: no message, no part of one, no answer. A node that has nothing to send
// yet answers, because its wire's thread waits for no rank. One case has to be told without being asked: a question
// stays behind a message that nobody has asked for, so an end that holds one says of itself that it is there.
//
// Looks are counted, not time: what passes while this daemon is stopped is not held against the other one.
//
// Thread: the wire's. Internal to device/wire; it does nothing itself.

#include <chrono>
#include <cstdint>

namespace gradsync::device {

/// How a connection is when it is looked at.
struct WireLook {
  bool waits = false;          ///< for a message, or for the rest of one
  bool holds = false;          ///< a message is here, and nobody has asked for it
  std::uint64_t received = 0;  ///< bytes since the connection was made
};

class WireWatch {
 public:
  enum class Advice : std::uint8_t { Nothing, Ask, Tell, GiveUp };

  static constexpr std::chrono::milliseconds kBetweenLooks{1'000};
  static constexpr unsigned kLooksToSignal = 3;  ///< between two questions, or two words of an end that holds
  static constexpr unsigned kLooksToGiveUp = 10;

  [[nodiscard]] Advice look(const WireLook& now);

 private:
  std::uint64_t received_ = 0;
  unsigned quiet_ = 0;  ///< looks at which the end waited and nothing had come
  unsigned held_ = 0;
};

}  // namespace gradsync::device
