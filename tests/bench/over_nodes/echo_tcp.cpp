// The least that a link between two daemons can do: what step_empty_nodes is compared with. Two processes with a Beast
// stream over TCP, with the options of gradsyncd's links. A text begins with the number of bytes of its answer. No
// JSON, no session, no state, no timer.
//
//   bench_echo_tcp answer ADDRESS FILE          answers; FILE is written with the port when it listens
//   bench_echo_tcp ask ADDRESS PORT TIMES BYTES ANSWER [BYTES ANSWER]…
//                                               for each line but `quit` on standard input it prints the nanoseconds of
//                                               TIMES exchanges as a list; an exchange is a text and its answer for
//                                               each pair of BYTES and ANSWER, one after the other
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket/stream.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace asio = boost::asio;
namespace websocket = boost::beast::websocket;
using Executor = asio::io_context::executor_type;
using Socket = asio::basic_stream_socket<asio::ip::tcp, Executor>;
using Acceptor = asio::basic_socket_acceptor<asio::ip::tcp, Executor>;
using Stream = websocket::stream<Socket, false>;
using boost::system::error_code;

constexpr std::size_t kMaskedBytes = 64 * 1024;  // in one write, as PeerLink sets it
constexpr std::size_t kNumber = 8;               // characters of the number that a text begins with

void set_options(Stream& stream) {
  stream.next_layer().set_option(asio::ip::tcp::no_delay(true));
  stream.auto_fragment(false);
  stream.write_buffer_bytes(kMaskedBytes);
  stream.text(true);
}

std::string text_of(std::size_t bytes, std::size_t answer) {
  std::string text = std::to_string(answer);
  text.insert(0, kNumber - text.size(), '0');
  text.resize(std::max(bytes, kNumber), ' ');
  return text;
}

class Answering : public std::enable_shared_from_this<Answering> {
 public:
  explicit Answering(Socket socket) : stream_(std::move(socket)) { set_options(stream_); }

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
    const auto* text = static_cast<const char*>(buffer_.data().data());
    std::size_t bytes = 0;
    std::from_chars(text, text + std::min(kNumber, buffer_.size()), bytes);
    buffer_.consume(buffer_.size());
    reply_.assign(bytes, ' ');
    stream_.async_write(asio::buffer(reply_), [self = shared_from_this()](error_code error, std::size_t) {
      if (!error) {
        self->read();
      }
    });
  }

  Stream stream_;
  boost::beast::flat_buffer buffer_;
  std::string reply_;
};

void accept(Acceptor& acceptor) {
  acceptor.async_accept([&](error_code error, Socket socket) {
    if (!error) {
      std::make_shared<Answering>(std::move(socket))->start();
    }
    accept(acceptor);
  });
}

int answer(const char* address, const char* file) {
  asio::io_context io{1};
  Acceptor acceptor{io, asio::ip::tcp::endpoint(asio::ip::make_address(address), 0)};
  accept(acceptor);
  std::ofstream(file) << acceptor.local_endpoint().port() << '\n';
  io.run();
  return 0;
}

/// One exchange after the other, each as soon as the one before is answered.
class Asking {
 public:
  Asking(asio::io_context& io, const asio::ip::tcp::endpoint& server, std::vector<std::string> texts)
      : io_(io), stream_(io), texts_(std::move(texts)) {
    stream_.next_layer().connect(server);
    set_options(stream_);
    stream_.handshake("localhost", "/peer");
  }

  std::vector<std::int64_t> exchange(std::size_t times) {
    nanoseconds_.clear();
    left_ = times;
    next();
    io_.restart();
    io_.run();
    return nanoseconds_;
  }

 private:
  void next() {
    if (left_ == 0) {
      return;
    }
    if (number_ == 0) {
      began_ = std::chrono::steady_clock::now();
    }
    stream_.async_write(asio::buffer(texts_[number_]), [this](error_code error, std::size_t) { check(error); });
    stream_.async_read(buffer_, [this](error_code error, std::size_t) {
      check(error);
      answered();
    });
  }

  void answered() {
    buffer_.consume(buffer_.size());
    if (++number_ == texts_.size()) {
      number_ = 0;
      --left_;
      nanoseconds_.push_back((std::chrono::steady_clock::now() - began_).count());
    }
    next();
  }

  static void check(error_code error) {
    if (error) {
      std::cerr << "bench_echo_tcp: " << error.message() << '\n';
      std::exit(1);
    }
  }

  asio::io_context& io_;
  Stream stream_;
  std::vector<std::string> texts_;
  boost::beast::flat_buffer buffer_;
  std::vector<std::int64_t> nanoseconds_;
  std::chrono::steady_clock::time_point began_;
  std::size_t left_ = 0;
  std::size_t number_ = 0;
};

int ask(int argc, char** argv) {
  std::vector<std::string> texts;
  for (int at = 5; at + 1 < argc; at += 2) {
    texts.push_back(text_of(std::stoull(argv[at]), std::stoull(argv[at + 1])));
  }
  asio::io_context io{1};
  const auto port = static_cast<std::uint16_t>(std::stoul(argv[3]));
  Asking asking{io, {asio::ip::make_address(argv[2]), port}, std::move(texts)};
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    std::string list;
    for (const std::int64_t nanoseconds : asking.exchange(std::stoull(argv[4]))) {
      list += (list.empty() ? "" : ", ") + std::to_string(nanoseconds);
    }
    std::cout << '[' << list << ']' << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "answer" && argc == 4) {
    return answer(argv[2], argv[3]);
  }
  if (what == "ask" && argc >= 7 && argc % 2 == 1) {
    return ask(argc, argv);
  }
  std::cerr << "usage: bench_echo_tcp answer ADDRESS FILE | ask ADDRESS PORT TIMES BYTES ANSWER [BYTES ANSWER]…\n";
  return 64;
}
