// A wire over stream sockets, which one thread reads and writes. What its owner says is put into a list, and the thread
// is woken; what is done goes back through WireOutcome. A timer runs while an end waits or holds, and for one look
// more.

#include "device/wire/socket_wire.hpp"

#include "base/thread_name.hpp"
#include "device/device_error.hpp"
#include "device/wire/wire_connections.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

namespace gradsync::device {

namespace {

/// What the owner wants of a connection: to send constant bytes, or to receive into others.
struct WireWish {
  WireConnection* connection = nullptr;
  WireMessage message;
  std::variant<std::span<const std::byte>, std::span<std::byte>> bytes;
};

class SocketWire : public Wire {
 public:
  SocketWire(
      std::vector<NodeConnection> connections, std::function<void()> wake, std::chrono::milliseconds between_looks
  );
  ~SocketWire() override;
  SocketWire(const SocketWire&) = delete;
  SocketWire& operator=(const SocketWire&) = delete;

  void send(const WireMessage& message, std::span<const std::byte> bytes) override { wish(message, bytes); }

  void receive(const WireMessage& message, std::span<std::byte> bytes) override { wish(message, bytes); }

  void take_done(std::vector<WireDone>& done) override { connections_.outcome().take(done); }

  [[nodiscard]] std::optional<WireFault> fault() const override { return connections_.outcome().fault(); }

  [[nodiscard]] std::vector<WireTotals> totals() const override { return connections_.totals(); }

 private:
  void wish(const WireMessage& message, decltype(WireWish::bytes) bytes);
  void run();
  void grant();
  void watch();

  WireConnections connections_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{connections_.io().get_executor()};
  std::mutex mutex_;
  std::vector<WireWish> wishes_;   ///< guarded by `mutex_`; not empty: the thread is about to take them
  std::vector<WireWish> granted_;  ///< of the thread
  std::chrono::milliseconds between_looks_;
  boost::asio::steady_timer next_look_{connections_.io()};
  bool watching_ = false;
  std::thread thread_;
};

SocketWire::SocketWire(
    std::vector<NodeConnection> connections, std::function<void()> wake, std::chrono::milliseconds between_looks
)
    : connections_(std::move(connections), std::move(wake), [this] { watch(); }), between_looks_(between_looks) {
  thread_ = std::thread([this] { run(); });
}

SocketWire::~SocketWire() {
  connections_.io().stop();
  thread_.join();
}

void SocketWire::wish(const WireMessage& message, decltype(WireWish::bytes) bytes) {
  WireConnection& connection = connections_.of(message.peer, message.payload);
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = wishes_.empty();
    wishes_.push_back({&connection, message, bytes});
  }
  if (first) {
    boost::asio::post(connections_.io(), [this] { grant(); });
  }
}

/// On the wire's thread.
void SocketWire::run() {
  name_this_thread("wire");
  try {
    connections_.start();
    connections_.io().run();
  } catch (const std::exception& problem) {
    connections_.fail({
        std::nullopt,
        fmt::format("this daemon could not go on with what travels between nodes: {}", problem.what()),
    });
  }
}

void SocketWire::grant() {
  {
    const std::lock_guard lock(mutex_);
    granted_.swap(wishes_);
  }
  for (const WireWish& wish : granted_) {
    if (const auto* sent = std::get_if<std::span<const std::byte>>(&wish.bytes)) {
      wish.connection->writer.send(wish.message, *sent);
    } else {
      wish.connection->reader.receive(wish.message, std::get<std::span<std::byte>>(wish.bytes));
    }
  }
  granted_.clear();
}

/// On the wire's thread, once until the next look.
void SocketWire::watch() {
  if (watching_) {
    return;
  }
  watching_ = true;
  next_look_.expires_after(between_looks_);
  next_look_.async_wait([this](const boost::system::error_code& error) {
    if (error) {
      return;
    }
    watching_ = false;
    if (connections_.look()) {
      watch();
    }
  });
}

}  // namespace

std::unique_ptr<Wire> make_socket_wire(std::vector<NodeConnection> connections, std::function<void()> wake) {
  return make_watchful_wire(std::move(connections), std::move(wake), WireWatch::kBetweenLooks);
}

std::unique_ptr<Wire> make_watchful_wire(
    std::vector<NodeConnection> connections, std::function<void()> wake, std::chrono::milliseconds between_looks
) {
  try {
    return std::make_unique<SocketWire>(std::move(connections), std::move(wake), between_looks);
  } catch (const DeviceError&) {
    throw;
  } catch (const std::exception& problem) {
    throw DeviceError(fmt::format("the connections between nodes cannot be used: {}", problem.what()));
  }
}

}  // namespace gradsync::device
