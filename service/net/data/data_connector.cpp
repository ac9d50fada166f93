#include "net/data/data_connector.hpp"

#include "base/version.hpp"
#include "net/data/data_request.hpp"
#include "net/limits/session_timer.hpp"
#include "net/peer/link_words.hpp"
#include "net/socket/peer.hpp"

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <fmt/format.h>

#include <fcntl.h>

#include <utility>

namespace gradsync::net {

namespace http = boost::beast::http;

DataConnector::DataConnector(const LinkContextPtr& context, LinkId id, std::string address, DataLinkHello hello)
    : Dialler(context, id, std::move(address)), hello_(std::move(hello)), deadline_(context->io.get_executor()) {}

void DataConnector::abort() {
  net::stop(deadline_);
  if (socket_) {
    socket_->end();
  }
}

void DataConnector::tell_end(std::string why) { context()->end_data(id(), UniqueFd{}, std::move(why)); }

Task<std::string> DataConnector::serve(PeerSocket socket, std::string host) {
  socket_.emplace(std::move(socket));
  late_ = false;
  after(deadline_, context()->options.connect, weak_from_this(), [this](Dialler&) {
    late_ = true;
    socket_->end();
  });
  std::string why = co_await ask(std::move(host));
  net::stop(deadline_);
  PeerSocket answered = std::move(*socket_);
  socket_.reset();
  if (late_) {
    co_return no_answer_within(context()->options.connect);
  }
  if (stopped() || !why.empty()) {
    co_return why;
  }
  through();
  boost::system::error_code ignored;
  UniqueFd taken{answered.release(ignored)};
  ::fcntl(taken.get(), F_SETFL, ::fcntl(taken.get(), F_GETFL) | O_NONBLOCK);
  context()->end_data(id(), std::move(taken), {});
  co_return std::string();
}

Task<std::string> DataConnector::ask(std::string host) {
  http::request<http::empty_body> request{http::verb::get, kDataPath, 11};
  request.set(http::field::host, host);
  request.set(http::field::user_agent, fmt::format("gradsyncd/{}", kVersion));
  request.set(http::field::connection, "Upgrade");
  request.set(http::field::upgrade, kDataProtocol);
  request.set(http::field::authorization, "Bearer " + context()->token);
  for (const auto& [name, value] : data_headers(hello_)) {
    request.set(name, value);
  }
  auto [write_error, written] = co_await http::async_write(*socket_, request, use_task);
  if (write_error) {
    co_return broken_by(write_error);
  }
  boost::beast::flat_buffer buffer;
  http::response_parser<http::empty_body> parser;
  parser.header_limit(kHeaderBytes);
  auto [read_error, read] = co_await http::async_read_header(*socket_, buffer, parser, use_task);
  if (read_error) {
    co_return read_error == http::error::end_of_stream ? broken_by(asio::error::eof) : broken_by(read_error);
  }
  const auto& answer = parser.get();
  if (answer.result() != http::status::switching_protocols) {
    co_return declined(answer.result_int());
  }
  const auto protocol = answer[http::field::upgrade];
  if (std::string_view(protocol.data(), protocol.size()) != kDataProtocol || buffer.size() > 0) {
    co_return std::string("what answers there is no listener for data connections of this release");
  }
  co_return std::string();
}

}  // namespace gradsync::net
