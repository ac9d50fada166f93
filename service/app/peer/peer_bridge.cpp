#include "app/peer/peer_bridge.hpp"

#include "base/text/host_port.hpp"
#include "base/version.hpp"

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

namespace gradsync::app {

namespace {

constexpr std::size_t kLongestName = 64;
constexpr std::size_t kTraced = 1024;  // bytes of a message in the log

bool is_any(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

/// The own address in messages. Other nodes are named by the addresses of their links.
std::string address_of(const std::string& listen, const std::string& node) {
  const auto parsed = parse_host_port(listen);
  const bool any = !parsed || is_any(parsed->host);
  return (any ? node : parsed->host).substr(0, kLongestName);
}

}  // namespace

PeerBridge::PeerBridge(boost::asio::io_context& io, Options options)
    : io_(io), options_(std::move(options)), data_(options_.incarnation, *this), waiting_(io), data_due_(io) {}

void PeerBridge::connect(net::PeerLinks& links, engine::Engine& engine, EngineClock& clock) {
  links_ = &links;
  engine_ = &engine;
  clock_ = &clock;
}

std::unique_ptr<engine::Peers> PeerBridge::make_port(engine::JobNumber job, const engine::AttachRequest& first) {
  if (first.ranks_here() == first.world_size && (!options_.apart || first.world_size == 1)) {
    return nullptr;
  }
  replace_earlier({first.uid, first.job});
  PeerPort::Options port;
  port.job = job;
  port.identity.job = {first.uid, first.job};
  port.identity.restart_count = first.restart_count;
  port.identity.world_size = first.world_size;
  port.identity.local_world_size = first.ranks_here();
  port.identity.meshes = first.meshes;
  port.identity.node = options_.node;
  port.identity.node_id = options_.node_id;
  port.identity.incarnation = options_.incarnation;
  port.identity.address = address_of(options_.listen, options_.node);
  if (const auto bound = parse_host_port(options_.endpoint)) {
    port.identity.listen = is_any(bound->host) ? "" : bound->host;
    port.identity.port = bound->port.value_or(net::kPeerPort);
  }
  port.coordinator = first.coordinator;
  port.version = kVersion;
  port.first_epoch = options_.first_epoch;
  port.retry_seed = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  auto made = std::make_unique<PeerPort>(std::move(port), engine_->declared_bytes(), *this);
  seats_.try_emplace(job, io_, *made);
  return made;
}

/// A job whose ranks have all left lives on until its lane is quiet. Both would speak for one node, so its links end,
/// once its last words are on them: the members of other nodes come again, and join the later job.
void PeerBridge::replace_earlier(const engine::JobKey& key) {
  std::vector<net::LinkId> ending;
  for (auto& [number, seat] : seats_) {
    if (seat.port->key() == key && !std::exchange(seat.replaced, true)) {
      send_outgoing(number, seat);
      data_.erase(number);
      for (const auto& [link, accepted] : accepted_) {
        if (accepted.job == number) {
          ending.push_back(link);
        }
      }
      if (seat.own_link != 0) {
        ending.push_back(seat.own_link);
      }
    }
  }
  for (const net::LinkId link : ending) {
    end_link(link, "another job of that name has begun on this node");
  }
}

PeerBridge::Seat* PeerBridge::seat_of(engine::JobNumber job) {
  const auto found = seats_.find(job);
  return found == seats_.end() ? nullptr : &found->second;
}

PeerBridge::Seat* PeerBridge::coordinator_of(const engine::JobKey& key) {
  const auto found = std::ranges::find_if(seats_, [&key](const auto& each) {
    const Seat& seat = each.second;
    return !seat.replaced && seat.port->coordinates() && seat.port->key() == key;
  });
  return found == seats_.end() ? nullptr : &found->second;
}

void PeerBridge::tell(engine::JobNumber job, engine::PeerEvents events) {
  if (!events.empty()) {
    engine_->on_peer_events(job, std::move(events));
  }
}

void PeerBridge::on_told(engine::JobNumber job) {
  Seat* const seat = seat_of(job);
  if (seat != nullptr && !std::exchange(seat->told, true)) {
    told_.push_back(job);
  }
}

void PeerBridge::on_gone(engine::JobNumber job) {
  for (auto& [link, accepted] : accepted_) {
    if (accepted.job == job) {
      orphans_.push_back(link);
    }
  }
  if (const Seat* const seat = seat_of(job); seat != nullptr && seat->own_link != 0) {
    orphans_.push_back(seat->own_link);
  }
  data_.erase(job);
  seats_.erase(job);
}

void PeerBridge::after_turn() {
  if (stopped_) {
    return;
  }
  for (const net::LinkId link : std::exchange(orphans_, {})) {
    accepted_.erase(link);
    opened_.erase(link);
    links_->close(link);
  }
  for (const engine::JobNumber job : std::exchange(told_, {})) {
    Seat* const seat = seat_of(job);
    if (seat == nullptr) {
      continue;
    }
    seat->told = false;
    send_outgoing(job, *seat);
    arm(job, *seat);
    if (engine::PeerEvents later = seat->port->take_later(); !later.empty()) {
      boost::asio::post(io_, [this, job, moved = std::move(later)]() mutable {
        turn("what follows from a vote", [&] { tell(job, std::move(moved)); });
      });
    }
    const bool coordinates = seat->port->coordinates();
    if (!std::exchange(seat->coordinates, coordinates) && coordinates) {
      boost::asio::post(io_, [this, key = seat->port->key()] { assign_waiting(key); });
    }
  }
}

void PeerBridge::send(net::LinkId link, Result<std::string> text) {
  if (!text) {
    spdlog::error("a message to another daemon cannot be sent: {}", text.error().message);
    end_link(link, text.error().message);
    return;
  }
  spdlog::trace("to another daemon link={} {}", link, std::string_view(*text).substr(0, kTraced));
  links_->send(link, std::move(*text));
}

void PeerBridge::send_outgoing(engine::JobNumber job, Seat& seat) {
  for (Outgoing& each : seat.port->take_outgoing()) {
    if (const auto* to_member = std::get_if<engine::SendToMember>(&each)) {
      const bool greets = std::holds_alternative<engine::PeerHello>(to_member->message);
      if (!greets && accepted_.contains(to_member->link)) {  // a link is greeted before its job is known
        send(to_member->link, rpc::encode_peer(to_member->message));
      }
    } else if (const auto* close = std::get_if<engine::CloseLink>(&each)) {
      accepted_.erase(close->link);
      links_->close(close->link);
    } else if (const auto* to_coordinator = std::get_if<engine::SendToCoordinator>(&each)) {
      if (seat.own_link != 0) {
        send(seat.own_link, rpc::encode_peer(to_coordinator->message));
      }
    } else if (const auto* wanted = std::get_if<engine::OpenLink>(&each)) {
      open(job, seat, wanted->address);
    } else if (auto* data = std::get_if<engine::OpenDataLinks>(&each)) {
      open_data_links(job, seat, std::move(*data));
    } else if (std::holds_alternative<CloseDataLinks>(each)) {
      data_.forget(job);
    } else if (const net::LinkId link = std::exchange(seat.own_link, 0); link != 0) {
      opened_.erase(link);
      links_->close(link);
    }
  }
}

/// An address without a port has that of the own listener.
std::string PeerBridge::with_port(const std::string& address) const {
  const auto parsed = parse_host_port(address);
  const auto own = parse_host_port(options_.listen);
  const std::uint16_t port = own && own->port.value_or(0) != 0 ? *own->port : net::kPeerPort;
  const bool bare = parsed && !parsed->port;
  return bare ? join_host_port(parsed->host, port) : address;
}

void PeerBridge::open(engine::JobNumber job, Seat& seat, const std::string& address) {
  if (seat.replaced) {
    return;
  }
  seat.own_link = links_->connect(with_port(address));
  opened_.emplace(seat.own_link, job);
}

void PeerBridge::arm(engine::JobNumber job, Seat& seat) {
  const std::optional<TimePoint> next = seat.port->next_deadline();
  if (!next || (seat.armed && *seat.armed <= *next)) {
    return;
  }
  seat.armed = next;
  seat.timer.expires_at(*next);
  seat.timer.async_wait([this, job](boost::system::error_code error) {
    Seat* const due = error ? nullptr : seat_of(job);
    if (due != nullptr) {
      due->armed.reset();
      turn("a deadline of other nodes", [&] {
        on_told(job);
        tell(job, due->port->on_time());
      });
    }
  });
}

void PeerBridge::stop() {
  stopped_ = true;
  waiting_.cancel();
  data_due_.cancel();
  for (auto& [job, seat] : seats_) {
    seat.timer.cancel();
  }
}

}  // namespace gradsync::app
