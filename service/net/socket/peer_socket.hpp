#pragma once
// The socket of a connection. A peer on a unix socket can send descriptors (SCM_RIGHTS). The kernel closes those that a
// read does not ask for, within the read, and such a close can wait for as long as the peer likes. So nothing is read
// that a look at it (MSG_PEEK) has not shown to be without descriptors, and the socket is closed by the closer. Where
// the kernel keeps descriptors away (SO_PASSRIGHTS, Linux 6.16), neither is needed.
//
// Thread: io only. Internal to net.

#include "net/socket/asio_types.hpp"
#include "net/socket/closer.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/error.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace gradsync::net {

/// The peer sent descriptors. No socket of Asio ends a read with it.
inline constexpr asio::error::basic_errors kSentDescriptors = asio::error::no_permission;

/// Has the kernel refuse descriptors that are sent to connections of this listening socket; false: it is older.
[[nodiscard]] bool refuse_descriptors(int listening_socket);

/// Reads what has come, unless descriptors are among it; nullopt: nothing has come. Waits for nothing.
[[nodiscard]] std::optional<std::size_t> read_without_descriptors(
    int socket, asio::mutable_buffer target, boost::system::error_code& error
);

class PeerSocket : public Socket {
 public:
  explicit PeerSocket(const Executor& executor) : Socket(executor) {}

  PeerSocket(PeerSocket&&) = default;
  PeerSocket(const PeerSocket&) = delete;
  PeerSocket& operator=(const PeerSocket&) = delete;
  PeerSocket& operator=(PeerSocket&&) = delete;

  ~PeerSocket() {
    try {
      end();
    } catch (const std::exception&) {
      // There is no memory to hand it over with: what was taken out of the socket is closed here.
    }
  }

  /// `closer`: none where no descriptor can come.
  void take(UniqueFd fd, int family, std::uint32_t uid, std::shared_ptr<Closer> closer);

  /// Closes it; pending operations end.
  void end();

  /// Ends with `kSentDescriptors` where that happened.
  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    if (!closer_ || asio::buffer_size(buffers) == 0) {
      return Socket::async_read_some(buffers, std::forward<Token>(token));
    }
    return asio::async_compose<Token, void(boost::system::error_code, std::size_t)>(
        Read<Buffers>{*this, buffers}, token, get_executor()
    );
  }

 private:
  template <typename Buffers>
  struct Read {
    PeerSocket& socket;
    Buffers buffers;
    bool begun = false;

    template <typename Self>
    void operator()(Self& self, boost::system::error_code error = {}, std::size_t /*peeked*/ = 0) {
      if (begun && error) {
        self.complete(error, 0);
        return;
      }
      if (begun) {
        auto target = asio::buffer_sequence_begin(buffers);
        while (asio::mutable_buffer(*target).size() == 0) {
          ++target;
        }
        if (const auto bytes = read_without_descriptors(socket.native_handle(), *target, error); bytes || error) {
          self.complete(error, bytes.value_or(0));
          return;
        }
      }
      begun = true;
      PeerSocket& read = socket;  // `self` holds this socket, and is moved
      read.async_receive(asio::buffer(&read.peeked_, 1), Socket::message_peek, std::move(self));
    }
  };

  std::shared_ptr<Closer> closer_;
  std::uint32_t uid_ = 0;
  char peeked_ = 0;  ///< a byte that is looked at, to wait for one
};

}  // namespace gradsync::net
