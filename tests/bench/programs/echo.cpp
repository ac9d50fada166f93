// The least that a WebSocket server of this kind can do: what step_empty is compared with. One thread, one Beast stream
// per connection with the options of gradsyncd's; a frame that holds an id is answered with a text of fixed size, any
// other is read and forgotten, as a notification is. No JSON, no session, no state, no timer.
//
//   bench_echo SOCKET HELLO RESULT    files with the result of the first request of a connection, and of all others
//   bench_echo SOCKET HELLO RESULT ELEMENTS FILE FILE
//                                     the same, but two clients are answered together, once both have asked and the
//                                     bare loops of a step went over their files: step_small without an engine
//   bench_echo SOCKET HELLO RESULT lane
//                                     two clients are answered together, once both have asked and another thread was
//                                     woken and has woken this one: step_empty without an engine
//   bench_echo SOCKET HELLO RESULT listen FILE ASK DECISION VOTE DONE
//   bench_echo SOCKET HELLO RESULT connect PORT ASK DECISION VOTE DONE
//                                     two servers with a client each, which both answer when both clients have asked,
//                                     each lane was woken, and texts of so many bytes were exchanged over TCP:
//                                     step_empty_nodes without an engine. FILE is written with the port
#include "bench/over_nodes/echo_link.hpp"
#include "bench/programs/echo_step.hpp"

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/websocket/stream.hpp>

#include <array>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace asio = boost::asio;
namespace websocket = boost::beast::websocket;
using Executor = asio::io_context::executor_type;
using Socket = asio::basic_stream_socket<asio::generic::stream_protocol, Executor>;
using Acceptor = asio::basic_socket_acceptor<asio::local::stream_protocol, Executor>;
using boost::system::error_code;

/// What all connections share.
struct Server {
  std::string hello;
  std::string other;
  std::function<void()> step;                  ///< empty: nobody waits for anybody
  asio::thread_pool* lane = nullptr;           ///< executes the step; nullptr: the thread of the connections does
  std::vector<std::function<void()>> waiting;  ///< the answers of those who have asked
  std::size_t ranks = 2;                       ///< that are waited for
  gradsync::bench::EchoLink* link = nullptr;   ///< to the other server; nullptr: there is none
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Socket socket, Server& server) : stream_(std::move(socket)), server_(server) {
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
    reply_.append(",\"result\":").append(greeted_ ? server_.other : server_.hello).push_back('}');
    buffer_.consume(buffer_.size());
    if (!std::exchange(greeted_, true) || !server_.step) {
      write();
      return;
    }
    server_.waiting.emplace_back([self = shared_from_this()] { self->write(); });
    if (server_.waiting.size() == server_.ranks) {
      step(std::exchange(server_.waiting, {}));
    }
  }

  void step(std::vector<std::function<void()>> answers) {
    const auto answer_all = [answers = std::move(answers)] {
      for (const std::function<void()>& answer : answers) {
        answer();
      }
    };
    if (server_.lane == nullptr) {
      server_.step();
      answer_all();
      return;
    }
    asio::post(*server_.lane, [self = shared_from_this(), answer_all] {
      self->server_.step();
      asio::post(self->stream_.get_executor(), [self, answer_all] {
        if (self->server_.link == nullptr) {
          answer_all();
        } else {
          self->server_.link->agree(answer_all);
        }
      });
    });
  }

  void write() {
    stream_.async_write(asio::buffer(reply_), [self = shared_from_this()](error_code error, std::size_t) {
      if (!error) {
        self->read();
      }
    });
  }

  websocket::stream<Socket, false> stream_;
  Server& server_;
  boost::beast::flat_buffer buffer_;
  std::string reply_;
  bool greeted_ = false;
};

void accept(Acceptor& acceptor, Server& server) {
  acceptor.async_accept([&](error_code error, auto socket) {
    if (!error) {
      std::make_shared<Connection>(Socket(std::move(socket)), server)->start();
    }
    accept(acceptor, server);
  });
}

std::string contents(const char* path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::move(text).str();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5 && argc != 7 && argc != 10) {
    std::cerr << "usage: bench_echo SOCKET HELLO RESULT "
                 "[lane | ELEMENTS FILE FILE | listen FILE BYTES… | connect PORT BYTES…]\n";
    return 64;
  }
  Server server{contents(argv[2]), contents(argv[3]), {}, nullptr, {}};
  asio::thread_pool lane{1};
  if (argc == 7) {
    server.step = gradsync::floors::step_over_files(std::stoull(argv[4]), argv[5], argv[6]);
  }
  asio::io_context io{1};
  std::unique_ptr<gradsync::bench::EchoLink> link;
  if (argc == 5 || argc == 10) {
    server.step = [] {};
    server.lane = &lane;
  }
  if (argc == 10) {
    const std::array<std::size_t, 4> bytes{
        std::stoull(argv[6]), std::stoull(argv[7]), std::stoull(argv[8]), std::stoull(argv[9])};
    link = std::make_unique<gradsync::bench::EchoLink>(io, std::string_view(argv[4]) == "listen", argv[5], bytes);
    server.ranks = 1;
    server.link = link.get();
  }
  Acceptor acceptor{io, asio::local::stream_protocol::endpoint(argv[1])};
  accept(acceptor, server);
  io.run();
}
