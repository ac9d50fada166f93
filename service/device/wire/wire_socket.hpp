#pragma once
// The socket below a connection of a wire. Internal to device/wire: nobody else of this layer sees Asio.

#include "base/unique_fd.hpp"

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>

#include <string>

namespace gradsync::device {

using WireSocket =
    boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, boost::asio::io_context::executor_type>;

/// Takes a connected stream socket over and sets its options, where it is one of TCP: what is written goes out at once,
/// and a connection over which nothing comes breaks when the other kernel does not answer for ten seconds. `what` names
/// it in errors. Throws DeviceError.
[[nodiscard]] WireSocket take_socket(boost::asio::io_context& io, UniqueFd fd, const std::string& what);

/// " (127.0.0.2:50412 to 127.0.0.3:9478)", this end first; empty where the socket has no such addresses.
[[nodiscard]] std::string addresses_of(const WireSocket& socket);

}  // namespace gradsync::device
