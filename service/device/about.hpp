#pragma once
// The ids that say what a command or a report is about.

#include "device/lane.hpp"

#include <variant>

namespace gradsync::device {

/// The ids of a LaneCommand or a LaneReport in a Failed report; 0 where the message has none of a kind.
template <typename Message>
[[nodiscard]] Failed about(const Message& message) {
  Failed failed;
  std::visit(
      [&failed](const auto& given) {
        if constexpr (requires { given.plan; }) {
          failed.plan = given.plan;
        }
        if constexpr (requires { given.tag; }) {
          failed.tag = given.tag;
        }
        if constexpr (requires { given.buffer; }) {
          failed.buffer = given.buffer;
        }
      },
      message
  );
  return failed;
}

}  // namespace gradsync::device
