// The least that a WebSocket server of this kind can do: what step_empty is compared with. One thread, one Beast stream
// per connection with the options of gradsyncd's; a frame that holds an id is answered with a text of fixed size, any
// other is read and forgotten, as a notification is. No JSON, no session, no state, no timer.
//
//   bench_echo SOCKET HELLO RESULT    files with the result of the first request of a connection, and of all others
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/websocket/stream.hpp>

#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

namespace {

namespace asio = boost::asio;
namespace websocket = boost::beast::websocket;
using Executor = asio::io_context::executor_type;
using Socket = asio::basic_stream_socket<asio::generic::stream_protocol, Executor>;
using Acceptor = asio::basic_socket_acceptor<asio::local::stream_protocol, Executor>;
using boost::system::error_code;

struct Results {
  std::string hello;
  std::string other;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Socket socket, const Results& results) : stream_(std::move(socket)), results_(results) {
    stream_.set_option(websocket::stream_base::decorator([](websocket::response_type& response) {
      response.set(boost::beast::http::field::sec_websocket_protocol, "gradsync.v1.jsonrpc");
    }));
    stream_.auto_fragment(false);
    stream_.text(true);
  }

  void start() {
    stream_.async_accept([self = shared_from_this()](error_code error) {
      if (!error) {
        self->read();
      }
    });
  }

 private:
  void read() {
    stream_.async_read(buffer_, [self = shared_from_this()](error_code error, std::size_t) {
      if (!error) {
        self->answer();
      }
    });
  }

  void answer() {
    constexpr std::string_view kId = "\"id\":";
    const std::string_view text{static_cast<const char*>(buffer_.data().data()), buffer_.size()};
    const std::size_t at = text.find(kId);
    if (at == std::string_view::npos) {
      buffer_.consume(buffer_.size());
      read();
      return;
    }
    const std::size_t begin = at + kId.size();
    reply_ = R"({"jsonrpc":"2.0","id":)";
    reply_.append(text.substr(begin, text.find(',', begin) - begin));
    reply_.append(",\"result\":").append(greeted_ ? results_.other : results_.hello).push_back('}');
    greeted_ = true;
    buffer_.consume(buffer_.size());
    stream_.async_write(asio::buffer(reply_), [self = shared_from_this()](error_code error, std::size_t) {
      if (!error) {
        self->read();
      }
    });
  }

  websocket::stream<Socket, false> stream_;
  const Results& results_;
  boost::beast::flat_buffer buffer_;
  std::string reply_;
  bool greeted_ = false;
};

void accept(Acceptor& acceptor, const Results& results) {
  acceptor.async_accept([&](error_code error, auto socket) {
    if (!error) {
      std::make_shared<Connection>(Socket(std::move(socket)), results)->start();
    }
    accept(acceptor, results);
  });
}

std::string contents(const char* path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::move(text).str();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: bench_echo SOCKET HELLO RESULT\n";
    return 64;
  }
  const Results results{contents(argv[2]), contents(argv[3])};
  asio::io_context io{1};
  Acceptor acceptor{io, asio::local::stream_protocol::endpoint(argv[1])};
  accept(acceptor, results);
  io.run();
}
