#pragma once
// Signals as events of the io thread, with their origin: what a terminal sends goes to the whole foreground group, so
// `run` must not pass it on to its child a second time.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <csignal>
#include <functional>
#include <vector>

namespace gradsync::app {

/// Blocks `signals` in this thread and those it starts; call before any other thread exists. Returns the mask before.
sigset_t block_signals(const std::vector<int>& signals);

class Signals {
 public:
  using Handler = std::function<void(int number, bool from_terminal)>;

  /// `signals` must be blocked already.
  Signals(boost::asio::io_context& io, const std::vector<int>& signals, Handler handler);
  void stop();

 private:
  void wait();
  void read();

  boost::asio::posix::stream_descriptor descriptor_;
  Handler handler_;
};

}  // namespace gradsync::app
