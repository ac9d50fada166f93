// The bridge's data connections: DataLinks decides, and here links are opened, time passes and jobs are told.

#include "app/peer/peer_bridge.hpp"

#include <boost/asio/post.hpp>
#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

namespace gradsync::app {

net::LinkId PeerBridge::dial(const std::string& address, const net::DataLinkHello& hello) {
  return links_->connect_data(address, hello);
}

void PeerBridge::drop(net::LinkId dial) { links_->drop(dial); }

/// The node of rank 0 is reached as its own members reach it.
void PeerBridge::open_data_links(engine::JobNumber job, const Seat& seat, engine::OpenDataLinks wanted) {
  if (seat.replaced) {
    return;
  }
  for (engine::DataEnd& end : wanted.ends) {
    end.address = with_port(end.address);
  }
  auto verdict = data_.want(std::chrono::steady_clock::now(), job, seat.port->key(), std::move(wanted));
  arm_data();
  boost::asio::post(io_, [this, moved = std::move(verdict)]() mutable { give(std::move(moved)); });
}

void PeerBridge::on_data_link(net::DataLink link) {
  if (!stopped_) {
    give(data_.on_arrived(std::chrono::steady_clock::now(), std::move(link)));
  }
}

void PeerBridge::on_data_connected(net::LinkId id, UniqueFd socket) {
  if (!stopped_) {
    give(data_.on_dialled(id, std::move(socket)));
  }
}

void PeerBridge::on_data_failed(net::LinkId id, const std::string& why) {
  if (!stopped_) {
    data_.on_dial_failed(std::chrono::steady_clock::now(), id, why);
    arm_data();
  }
}

void PeerBridge::give(std::optional<DataVerdict> verdict) {
  arm_data();
  if (!verdict) {
    return;
  }
  turn("data connections", [&] {
    if (seat_of(verdict->first) != nullptr) {
      engine::PeerEvents events;
      events.push_back(std::move(verdict->second));
      tell(verdict->first, std::move(events));
    }
  });
}

void PeerBridge::arm_data() {
  const std::optional<TimePoint> next = data_.next_deadline();
  if (!next || stopped_ || (data_armed_ && *data_armed_ <= *next)) {
    return;
  }
  data_armed_ = next;
  data_due_.expires_at(*next);
  data_due_.async_wait([this](boost::system::error_code error) {
    if (error || stopped_) {
      return;
    }
    data_armed_.reset();
    for (DataVerdict& verdict : data_.on_time(std::chrono::steady_clock::now())) {
      give(std::move(verdict));
    }
    arm_data();
  });
}

}  // namespace gradsync::app
