#include "device/wire/wire_end.hpp"

#include <boost/asio/error.hpp>
#include <fmt/format.h>

namespace gradsync::device {

std::string WireEnd::ended_by(const boost::system::error_code& error) const {
  if (error == boost::asio::error::eof) {
    return fmt::format("the other node closed {}", words());
  }
  if (error == boost::asio::error::timed_out) {
    return fmt::format("{} broke, because the other node's kernel does not answer any more", words());
  }
  return fmt::format("{} broke: {}", words(), error.message());
}

}  // namespace gradsync::device
