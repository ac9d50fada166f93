// A wire over stream sockets, which one thread reads and writes. What its owner says is put into a list, and the thread
// is woken; what is done goes back through WireOutcome. A timer runs while an end waits or holds, and for one look
// more.

#include "device/wire/socket_wire.hpp"

#include "base/thread_name.hpp"
#include "device/device_error.hpp"
#include "device/wire/wire_reader.hpp"
#include "device/wire/wire_watch.hpp"
#include "device/wire/wire_writer.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

namespace gradsync::device {

namespace {

struct WireConnection {
  explicit WireConnection(WireEnd given) : end(std::move(given)) {}

  /// True: it has to be looked at again.
  bool look();

  WireEnd end;
  WireWriter writer{end};
  WireReader reader{end, writer};
  WireWatch watch;
};

bool WireConnection::look() {
  const WireLook now = reader.look();
  switch (watch.look(now)) {
    case WireWatch::Advice::Nothing:
      break;
    case WireWatch::Advice::Ask:
      writer.say(WireSignal::AreYouThere);
      break;
    case WireWatch::Advice::Tell:
      writer.say(WireSignal::Here);
      break;
    case WireWatch::Advice::GiveUp:
      end.fail(fmt::format(
          "no byte came over {} for {} s, though the other node was asked whether it is there{}",
          end.words(),
          WireWatch::kLooksToGiveUp,
          reader.where_it_was()
      ));
      break;
  }
  return !end.stopped && (now.waits || now.holds);
}

struct WirePeer {
  WireCounts counts;
  std::unique_ptr<WireConnection> partials;
  std::unique_ptr<WireConnection> results;

  [[nodiscard]] WireConnection& of(plan::Payload payload) const {
    return payload == plan::Payload::Partial ? *partials : *results;
  }
};

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

  void take_done(std::vector<WireDone>& done) override { outcome_.take(done); }

  [[nodiscard]] std::optional<WireFault> fault() const override { return outcome_.fault(); }

  [[nodiscard]] std::vector<WireTotals> totals() const override;

 private:
  void take(NodeConnection connection);
  [[nodiscard]] std::unique_ptr<WireConnection> make(plan::TransferNode node, plan::Payload payload, UniqueFd fd);
  void wish(const WireMessage& message, decltype(WireWish::bytes) bytes);
  void run();
  void grant();
  void watch();
  void look();
  void fail(WireFault fault);

  WireOutcome outcome_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{io_.get_executor()};
  std::map<plan::TransferNode, WirePeer> peers_;
  std::mutex mutex_;
  std::vector<WireWish> wishes_;   ///< guarded by `mutex_`; not empty: the thread is about to take them
  std::vector<WireWish> granted_;  ///< of the thread
  std::chrono::milliseconds between_looks_;
  boost::asio::steady_timer next_look_{io_};
  bool watching_ = false;
  std::thread thread_;
};

SocketWire::SocketWire(
    std::vector<NodeConnection> connections, std::function<void()> wake, std::chrono::milliseconds between_looks
)
    : outcome_(std::move(wake)), between_looks_(between_looks) {
  for (NodeConnection& connection : connections) {
    take(std::move(connection));
  }
  thread_ = std::thread([this] { run(); });
}

SocketWire::~SocketWire() {
  io_.stop();
  thread_.join();
}

void SocketWire::take(NodeConnection connection) {
  const plan::TransferNode node = connection.node;
  const auto [place, added] = peers_.try_emplace(node);
  if (!added) {
    throw DeviceError(fmt::format("node {} has connections already", node));
  }
  place->second.partials = make(node, plan::Payload::Partial, std::move(connection.partials));
  place->second.results = make(node, plan::Payload::Result, std::move(connection.results));
}

std::unique_ptr<WireConnection> SocketWire::make(plan::TransferNode node, plan::Payload payload, UniqueFd fd) {
  const char* what = payload == plan::Payload::Partial ? "partial sums" : "results";
  WireSocket socket = take_socket(io_, std::move(fd), fmt::format("the connection of {} to node {}", what, node));
  const std::string addresses = addresses_of(socket);
  return std::make_unique<WireConnection>(WireEnd{
      std::move(socket),
      payload,
      peers_.at(node).counts,
      outcome_,
      [this, node, addresses](const std::string& why) {
        fail({node, why + addresses});
      },
      [this] { watch(); },
  });
}

void SocketWire::wish(const WireMessage& message, decltype(WireWish::bytes) bytes) {
  const auto peer = peers_.find(message.peer);
  if (peer == peers_.end()) {
    throw DeviceError(fmt::format("there is no connection to node {}", message.peer));
  }
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = wishes_.empty();
    wishes_.push_back({&peer->second.of(message.payload), message, bytes});
  }
  if (first) {
    boost::asio::post(io_, [this] { grant(); });
  }
}

/// On the wire's thread.
void SocketWire::run() {
  name_this_thread("wire");
  try {
    for (auto& [node, peer] : peers_) {
      peer.partials->reader.start();
      peer.results->reader.start();
    }
    io_.run();
  } catch (const std::exception& problem) {
    fail({std::nullopt, fmt::format("this daemon could not go on with what travels between nodes: {}", problem.what())}
    );
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

void SocketWire::watch() {
  if (watching_) {
    return;
  }
  watching_ = true;
  next_look_.expires_after(between_looks_);
  next_look_.async_wait([this](const boost::system::error_code& error) {
    if (!error) {
      look();
    }
  });
}

void SocketWire::look() {
  watching_ = false;
  bool again = false;
  for (auto& [node, peer] : peers_) {
    again = peer.partials->look() || again;
    again = peer.results->look() || again;
  }
  if (again) {
    watch();
  }
}

/// Stops first, so that the owner who hears of the fault finds that nothing is read or written any more.
void SocketWire::fail(WireFault fault) {
  for (auto& [node, peer] : peers_) {
    peer.partials->end.stop();
    peer.results->end.stop();
  }
  outcome_.fail(std::move(fault));
}

std::vector<WireTotals> SocketWire::totals() const {
  std::vector<WireTotals> totals;
  for (const auto& [node, peer] : peers_) {
    totals.push_back({
        node,
        peer.counts.sent.load(std::memory_order_relaxed),
        peer.counts.received.load(std::memory_order_relaxed),
    });
  }
  return totals;
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
