#pragma once
// What a command is about, as far as the order of the queue follows from it.

#include "device/lane.hpp"

#include <optional>
#include <type_traits>
#include <variant>

namespace gradsync::device {

/// The plan that a command is about.
inline std::optional<PlanId> plan_of(const LaneCommand& command) {
  return std::visit(
      [](const auto& given) -> std::optional<PlanId> {
        if constexpr (requires { given.plan; }) {
          return given.plan;
        } else {
          return std::nullopt;
        }
      },
      command
  );
}

/// The attempt a command works on, if an Abort can stop it.
struct Attempt {
  PlanId plan = 0;
  Tag tag = 0;
};

inline std::optional<Attempt> attempt_of(const LaneCommand& command) {
  return std::visit(
      [](const auto& given) -> std::optional<Attempt> {
        using Command = std::remove_cvref_t<decltype(given)>;
        if constexpr (std::is_same_v<Command, ReduceBucket> || std::is_same_v<Command, FinishStep> || std::is_same_v<Command, MeasureBuckets> || std::is_same_v<Command, ScaleGradients> || std::is_same_v<Command, ReadRows>) {
          return Attempt{given.plan, given.tag};
        } else {
          return std::nullopt;
        }
      },
      command
  );
}

}  // namespace gradsync::device
