#pragma once
// Actions of the machines as short texts, in order: what is sent by its method, what the job is told by its type.

#include "engine/peers/coordinator_machine.hpp"
#include "engine/peers/coordinator_node.hpp"
#include "engine/peers/member_machine.hpp"

#include <array>
#include <string>
#include <type_traits>
#include <variant>

namespace gradsync::engine {

inline std::string name_of(const ToCoordinator& message) {
  constexpr std::array kNames{
      "join",
      "ready",
      "connected",
      "leave",
      "ask",
      "rows",
      "vote",
      "fail",
      "overdue",
      "missing",
      "want",
      "policies",
      "declaration",
      "pause",
      "beat"};
  static_assert(kNames.size() == std::variant_size_v<ToCoordinator>);
  return kNames[message.index()];
}

inline std::string name_of(const ToMember& message) {
  constexpr std::array kNames{
      "hello",
      "refused",
      "ruling",
      "prepare",
      "connect",
      "begin",
      "end",
      "compare",
      "decision",
      "done",
      "abort",
      "who",
      "want",
      "policies",
      "declaration",
      "pause",
      "beat"};
  static_assert(kNames.size() == std::variant_size_v<ToMember>);
  return kNames[message.index()];
}

inline std::string name_of(const PeerEvent& event) {
  constexpr std::array kNames{
      "PrepareEpoch",
      "PoliciesWanted",
      "PoliciesGiven",
      "ConnectEpoch",
      "LinksReady",
      "LinksFailed",
      "BeginEpoch",
      "EpochEnded",
      "EpochRefused",
      "WantRows",
      "SumsKnown",
      "AttemptRefused",
      "VerdictReached",
      "WhoIsMissing",
      "PeersHalfTime",
      "PeersPaused"};
  static_assert(kNames.size() == std::variant_size_v<PeerEvent>);
  return kNames[event.index()];
}

/// "ready", "PrepareEpoch", "open", "drop"; "data", "1:prepare", "own:prepare", "close 1", "StoreDone", "WarnHalfTime".
template <typename Action>
std::string name_of_action(const Action& action) {
  return std::visit(
      [](const auto& one) -> std::string {
        using One = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<One, SendToCoordinator>) {
          return name_of(one.message);
        } else if constexpr (std::is_same_v<One, SendToMember>) {
          return std::to_string(one.link) + ":" + name_of(one.message);
        } else if constexpr (std::is_same_v<One, TellOwnMember>) {
          return "own:" + name_of(one.message);
        } else if constexpr (std::is_same_v<One, TellJob>) {
          return name_of(one.event);
        } else if constexpr (std::is_same_v<One, CloseLink>) {
          return "close " + std::to_string(one.link);
        } else if constexpr (std::is_same_v<One, OpenLink>) {
          return "open";
        } else if constexpr (std::is_same_v<One, DropLink>) {
          return "drop";
        } else if constexpr (std::is_same_v<One, OpenDataLinks>) {
          return "data";
        } else if constexpr (std::is_same_v<One, StoreDone>) {
          return "StoreDone";
        } else {
          static_assert(std::is_same_v<One, WarnHalfTime>);
          return "WarnHalfTime";
        }
      },
      action
  );
}

/// All of them, with spaces between.
template <typename Actions>
std::string words_of(const Actions& actions) {
  std::string words;
  for (const auto& action : actions) {
    words += (words.empty() ? "" : " ") + name_of_action(action);
  }
  return words;
}

/// The last event of that type that the job is told.
template <typename Event>
const Event& told(const MemberActions& actions) {
  const Event* found = nullptr;
  for (const MemberAction& action : actions) {
    if (const auto* tell = std::get_if<TellJob>(&action)) {
      found = std::holds_alternative<Event>(tell->event) ? &std::get<Event>(tell->event) : found;
    }
  }
  return found == nullptr ? throw std::logic_error("the job is not told of it") : *found;
}

/// The last message of that type that is sent.
template <typename Message>
const Message& sent(const MemberActions& actions) {
  const Message* found = nullptr;
  for (const MemberAction& action : actions) {
    if (const auto* send = std::get_if<SendToCoordinator>(&action)) {
      found = std::holds_alternative<Message>(send->message) ? &std::get<Message>(send->message) : found;
    }
  }
  return found == nullptr ? throw std::logic_error("it is not sent") : *found;
}

/// Likewise, over any link or to the own member.
template <typename Message>
const Message& sent(const CoordinatorActions& actions) {
  const Message* found = nullptr;
  for (const CoordinatorAction& action : actions) {
    const auto* send = std::get_if<SendToMember>(&action);
    const auto* tell = std::get_if<TellOwnMember>(&action);
    const ToMember* message = send != nullptr ? &send->message : tell != nullptr ? &tell->message : nullptr;
    if (message != nullptr && std::holds_alternative<Message>(*message)) {
      found = &std::get<Message>(*message);
    }
  }
  return found == nullptr ? throw std::logic_error("it is not sent") : *found;
}

}  // namespace gradsync::engine
