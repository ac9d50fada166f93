#include "app/cli/ask/rpc_client.hpp"
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
  const Json request{{"jsonrpc", "2.0"}, {"id", 1}, {"method", command.method}, {"params", params}};
  const Result<std::string> found = find_daemon(command.address, process_environment(), this_caller());
  if (found.has_error()) {
    complain(found.error().message, found.error().hint);
    return kExitUnavailable;
  }
  const std::string& socket = *found;
  const Result<HttpReplyText> reply = post_rpc(socket, request.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (reply.has_error()) {
    complain(reply.error().message, reply.error().hint);
    return kExitUnavailable;
  }
  const Json answer = Json::parse(reply->body, nullptr, false);
  if (answer.is_object() && answer.contains("result")) {
    std::cout << answer["result"].dump(2) << "\n";
    return kExitOk;
  }
  if (answer.is_object() && answer.contains("error") && answer["error"].is_object()) {
    const Json& error = answer["error"];
    const Json data = error.value("data", Json::object());
    complain(fmt::format("{}: {}", data.value("kind", "error"), error.value("message", "")), data.value("hint", ""));
    return kExitFailure;
  }
  complain(fmt::format("the daemon at '{}' answered {}: {}", socket, reply->status, reply->body), "");
  return kExitFailure;
}

}  // namespace gradsync::app
