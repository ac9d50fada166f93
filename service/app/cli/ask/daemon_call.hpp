#pragma once
// A call of a running daemon by a command, which says what went wrong.

#include <nlohmann/json.hpp>

#include <string>
#include <variant>

namespace gradsync::app {

/// The result of the method, or the exit code where there is none; stderr has the reason then. `address` is as
/// `find_daemon` takes it.
[[nodiscard]] std::variant<nlohmann::ordered_json, int> call_daemon(
    const std::string& address, const std::string& method, const nlohmann::ordered_json& params
);

}  // namespace gradsync::app
