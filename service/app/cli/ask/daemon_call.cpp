#include "app/cli/ask/daemon_call.hpp"

#include "app/cli/ask/rpc_client.hpp"
#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"

#include <fmt/format.h>

namespace gradsync::app {

std::variant<nlohmann::ordered_json, int> call_daemon(
    const std::string& address, const std::string& method, const nlohmann::ordered_json& params
) {
  using Json = nlohmann::ordered_json;
  const Json request{{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", params}};
  const Result<std::string> socket = find_daemon(address, process_environment(), this_caller());
  if (socket.has_error()) {
    complain(socket.error().message, socket.error().hint);
    return static_cast<int>(kExitUnavailable);
  }
  const Result<HttpReplyText> reply = post_rpc(*socket, request.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (reply.has_error()) {
    complain(reply.error().message, reply.error().hint);
    return static_cast<int>(kExitUnavailable);
  }
  Json answer = Json::parse(reply->body, nullptr, false);
  if (answer.is_object() && answer.contains("result")) {
    return std::move(answer["result"]);
  }
  if (answer.is_object() && answer.contains("error") && answer["error"].is_object()) {
    const Json& error = answer["error"];
    const Json data = error.value("data", Json::object());
    const std::string kind = data.value("kind", "error");
    complain(fmt::format("{}: {}", kind, error.value("message", "")), data.value("hint", ""));
    return static_cast<int>(kExitFailure);
  }
  complain(fmt::format("the daemon at '{}' answered {}: {}", *socket, reply->status, reply->body), "");
  return static_cast<int>(kExitFailure);
}

}  // namespace gradsync::app
