#include "app/cli/ask/daemon_call.hpp"
#include "app/cli/commands.hpp"
#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iostream>

namespace gradsync::app {

int execute(const RpcCommand& command) {
  using Json = nlohmann::ordered_json;
  const Json params = command.params.empty() ? Json::object() : Json::parse(command.params, nullptr, false);
  if (!params.is_object()) {
    complain(
        fmt::format("params must be a JSON object, not '{}'", command.params),
        R"(example: gradsyncd rpc stats.get '{"job": "llm"}')"
    );
    return kExitUsage;
  }
  const auto answer = call_daemon(command.address, command.method, params);
  if (const int* const code = std::get_if<int>(&answer)) {
    return *code;
  }
  std::cout << std::get<Json>(answer).dump(2) << "\n";
  return kExitOk;
}

}  // namespace gradsync::app
