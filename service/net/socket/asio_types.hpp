#pragma once
// The Asio types of this layer. TCP and unix sockets are one type, so that Beast is instantiated once; the executor is
// the concrete one of io_context, because there is one io thread. Internal to net.

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/basic_stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <chrono>

namespace gradsync::net {

namespace asio = boost::asio;

using Executor = asio::io_context::executor_type;
using Socket = asio::basic_stream_socket<asio::generic::stream_protocol, Executor>;
using Timer =
    asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor>;
using Descriptor = asio::posix::basic_stream_descriptor<Executor>;

template <typename T>
using Task = asio::awaitable<T, Executor>;

/// Completes with a tuple whose first element is the error code.
inline constexpr asio::as_tuple_t<asio::use_awaitable_t<Executor>> use_task{};

}  // namespace gradsync::net
