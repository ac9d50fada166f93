#pragma once
// Tells the service manager that started this process what it does: the protocol of sd_notify, one datagram for a
// message, to the socket that NOTIFY_SOCKET names. libsystemd would be a dependency for these lines.
//
// Thread: the io thread, whose loop is what a watchdog asks about. Nothing waits for the manager: what it does not take
// at once is lost. Without the variable nothing is sent.

#include "app/config/configuration.hpp"
#include "base/clock.hpp"
#include "base/unique_fd.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <sys/socket.h>
#include <sys/un.h>

#include <string_view>

namespace gradsync::app {

class SystemdNotifier {
 public:
  SystemdNotifier(boost::asio::io_context& io, const Environment& environment);

  /// The listeners are up. From here on the watchdog hears twice in its time that the loop turns.
  void tell_ready(std::string_view status);
  void tell_stopping();

  /// Tells nothing any more, and keeps no loop running.
  void close();

 private:
  void send(std::string_view message) const;
  void beat();

  boost::asio::steady_timer timer_;
  Milliseconds period_{0};  ///< 0: no watchdog waits
  UniqueFd socket_;
  sockaddr_un address_{};
  socklen_t address_bytes_ = 0;
};

}  // namespace gradsync::app
