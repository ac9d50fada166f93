#pragma once
// A bare link between two servers of `bench_echo`: a Beast stream over TCP with the options of gradsyncd's links, and
// the four texts of a step over two nodes. The one that connects is the member: it asks, and votes when the decision
// has come; the one that listens decides when its own client has asked too, and is done with the vote. No JSON, no
// state but how far the step is.

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket/stream.hpp>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <utility>

namespace gradsync::bench {

class EchoLink {
 public:
  using Executor = boost::asio::io_context::executor_type;
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Executor>;

  /// `bytes`: of ask, decision, vote and done. Where it listens, `port` is a file for the port, and it returns when the
  /// other server has connected.
  EchoLink(boost::asio::io_context& io, bool listens, const std::string& port, const std::array<std::size_t, 4>& bytes)
      : listens_(listens), stream_(io) {
    const auto address = boost::asio::ip::make_address("127.0.0.2");
    if (listens) {
      boost::asio::basic_socket_acceptor<boost::asio::ip::tcp, Executor> acceptor{io, {address, 0}};
      std::ofstream(port) << acceptor.local_endpoint().port() << std::endl;
      acceptor.accept(stream_.next_layer());
      stream_.accept();
    } else {
      stream_.next_layer().connect({address, static_cast<std::uint16_t>(std::stoul(port))});
      stream_.handshake("localhost", "/peer");
    }
    stream_.next_layer().set_option(boost::asio::ip::tcp::no_delay(true));
    stream_.auto_fragment(false);
    stream_.write_buffer_bytes(64 * 1024);
    stream_.text(true);
    for (std::size_t text = 0; text < bytes.size(); ++text) {
      texts_[text].assign(bytes[text], ' ');
    }
    read();
  }

  /// The own client has asked: `done` is called when both servers know it of the other's.
  void agree(std::function<void()> done) {
    done_ = std::move(done);
    if (!listens_) {
      write(texts_[0]);
    } else if (std::exchange(other_asked_, false)) {
      write(texts_[1]);
    }
  }

 private:
  void read() {
    stream_.async_read(buffer_, [this](boost::system::error_code error, std::size_t bytes) {
      if (error) {
        std::exit(0);  // the other server has ended
      }
      buffer_.consume(bytes);
      heard();
      read();
    });
  }

  void heard() {
    first_ = !first_;
    if (listens_ && first_) {
      if (done_) {
        write(texts_[1]);
      } else {
        other_asked_ = true;
      }
      return;
    }
    if (!listens_ && first_) {
      write(texts_[2]);
      return;
    }
    if (listens_) {
      write(texts_[3]);
    }
    std::exchange(done_, nullptr)();
  }

  void write(const std::string& text) {
    stream_.async_write(boost::asio::buffer(text), [](boost::system::error_code, std::size_t) {});
  }

  bool listens_;
  boost::beast::websocket::stream<Socket, false> stream_;
  boost::beast::flat_buffer buffer_;
  std::array<std::string, 4> texts_;  ///< ask, decision, vote, done
  std::function<void()> done_;        ///< set from the own client's call until the step is done
  bool other_asked_ = false;
  bool first_ = false;  ///< the text that came last is the first of its step
};

}  // namespace gradsync::bench
