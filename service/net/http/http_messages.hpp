#pragma once
// Requests and answers of HTTP as Beast has them, made of what the rest of this layer says. For .cpp files that speak
// HTTP. Internal to net.

#include "net/data/data_request.hpp"
#include "net/http/refusals.hpp"
#include "net/types.hpp"

#include <boost/beast/core/string_type.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace gradsync::net {

using Request = boost::beast::http::request<boost::beast::http::string_body>;
using Response = boost::beast::http::response<boost::beast::http::string_body>;

[[nodiscard]] inline std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

[[nodiscard]] Response text_response(boost::beast::http::status status, std::string body);
[[nodiscard]] Response page_response(const HttpReply& page);
[[nodiscard]] Response refused_response(Refusal refusal);

/// Without the body where HEAD asked for it.
void set_length(Response& answer, boost::beast::http::verb method);

/// The request outlives it.
[[nodiscard]] DataRequest data_request_of(const Request& request, std::size_t bytes_behind);

}  // namespace gradsync::net
