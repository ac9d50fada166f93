#include "net/http/http_messages.hpp"

#include <boost/beast/http/rfc7230.hpp>

#include <utility>

namespace gradsync::net {

namespace http = boost::beast::http;

Response text_response(http::status status, std::string body) {
  Response response{status, 11};
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  response.body() = std::move(body) + "\n";
  return response;
}

Response page_response(const HttpReply& page) {
  Response response{static_cast<http::status>(page.status), 11};
  response.set(http::field::content_type, page.content_type);
  response.set(http::field::cache_control, "no-store");
  response.body() = page.body;
  return response;
}

Response refused_response(Refusal refusal) {
  Response response = text_response(static_cast<http::status>(refusal.status), std::move(refusal.text));
  if (!refusal.field.empty()) {
    response.set(refusal.field, refusal.value);
  }
  return response;
}

void set_length(Response& answer, http::verb method) {
  if (method == http::verb::head) {
    answer.content_length(answer.body().size());
    answer.body().clear();
  } else {
    answer.prepare_payload();
  }
}

DataRequest data_request_of(const Request& request, std::size_t bytes_behind) {
  DataRequest data;
  data.is_get = request.method() == http::verb::get;
  data.upgrades = http::token_list{request[http::field::connection]}.exists("upgrade");
  data.protocol = view(request[http::field::upgrade]);
  data.bytes_behind = bytes_behind;
  data.header = [&request](std::string_view name) -> std::optional<std::string_view> {
    const boost::beast::string_view wanted{name.data(), name.size()};
    return request.count(wanted) == 1 ? std::optional(view(request[wanted])) : std::nullopt;
  };
  return data;
}

}  // namespace gradsync::net
