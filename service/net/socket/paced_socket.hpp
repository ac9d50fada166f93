#pragma once
// A socket below Beast whose reads are paced (net/limits/read_pace.hpp). Beast answers pings and collects parts of
// messages inside one operation, so the socket is the only place where everything that a connection sends can wait.
//
// Thread: io only. Internal to net.

#include "net/limits/read_pace.hpp"
#include "net/socket/peer_socket.hpp"

#include <boost/asio/append.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/post.hpp>

#include <utility>

namespace gradsync::net {

/// An error that no socket of Asio ends a read with.
inline constexpr asio::error::basic_errors kWaitedTooLong = asio::error::try_again;

class PacedSocket : public PeerSocket {
 public:
  PacedSocket(PeerSocket&& socket, ReadPace& pace) : PeerSocket(std::move(socket)), pace_(pace) {}

  /// `operation_aborted`: the pace was stopped.
  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler handler) {
    const ReadPace::Turn turn = pace_.next();
    if (turn == ReadPace::Turn::Go) {
      PeerSocket::async_read_some(buffers, std::move(handler));
    } else {
      asio::async_compose<Handler, void(boost::system::error_code, std::size_t)>(
          Read<Buffers>{*this, buffers, turn}, handler, get_executor()
      );
    }
  }

 private:
  template <typename Buffers>
  struct Read {
    PacedSocket& socket;
    Buffers buffers;
    ReadPace::Turn turn;
    bool begun = false;

    template <typename Self>
    void operator()(Self& self, boost::system::error_code error = {}, std::size_t bytes = 0) {
      if (begun && turn == ReadPace::Turn::Wait && !error) {
        turn = socket.pace_.next();
      } else if (begun) {
        self.complete(error, bytes);
        return;
      }
      begun = true;
      PacedSocket& read = socket;      // `self` holds this socket, and is moved
      const Buffers target = buffers;  // likewise
      switch (turn) {
        case ReadPace::Turn::Wait:
          read.pace_.timer().async_wait(std::move(self));
          break;
        case ReadPace::Turn::Go:
          read.PeerSocket::async_read_some(target, std::move(self));
          break;
        case ReadPace::Turn::TooLong:
          end(self, kWaitedTooLong);
          break;
        case ReadPace::Turn::Stopped:
          end(self, asio::error::operation_aborted);
          break;
      }
    }

    /// Posted, because the call that began the operation may still be running.
    template <typename Self>
    void end(Self& self, boost::system::error_code error) {
      const Executor executor = socket.get_executor();
      asio::post(executor, asio::append(std::move(self), error, std::size_t{0}));
    }
  };

  ReadPace& pace_;
};

}  // namespace gradsync::net
