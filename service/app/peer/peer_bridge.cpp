#include "app/peer/peer_bridge.hpp"

#include "base/host_port.hpp"
#include "base/version.hpp"

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <utility>

namespace gradsync::app {

namespace {

constexpr std::size_t kMostWaiting = 256;  // JOINs of jobs that are not here, which may have 16 MiB each
constexpr std::size_t kLongestName = 64;
constexpr std::size_t kTraced = 1024;  // bytes of a message in the log

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') {
    return "localhost";
  }
  return std::string(name.data()).substr(0, kLongestName);
}

/// The own address in messages. Other nodes are named by the addresses of their links.
std::string address_of(const std::string& listen, const std::string& node) {
  const auto parsed = parse_host_port(listen);
  const bool any = !parsed || parsed->host == "0.0.0.0" || parsed->host == "::";
  return (any ? node : parsed->host).substr(0, kLongestName);
}

}  // namespace

PeerBridge::PeerBridge(boost::asio::io_context& io, Options options)
    : io_(io), options_(std::move(options)), waiting_(io) {
  if (options_.node.empty()) {
    options_.node = host_name();
  }
}

void PeerBridge::connect(net::PeerLinks& links, engine::Engine& engine, EngineClock& clock) {
  links_ = &links;
  engine_ = &engine;
  clock_ = &clock;
}

std::unique_ptr<engine::Peers> PeerBridge::make_port(engine::JobNumber job, const engine::AttachRequest& first) {
  if (first.ranks_here() == first.world_size) {
    return nullptr;
  }
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
  port.coordinator = first.coordinator;
  port.version = kVersion;
  port.first_epoch = options_.first_epoch;
  port.retry_seed = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  auto made = std::make_unique<PeerPort>(std::move(port), engine_->declared_bytes(), *this);
  seats_.try_emplace(job, io_, *made);
  return made;
}

template <typename Work>
void PeerBridge::turn(const char* what, Work&& work) {
  if (!stopped_) {
    clock_->turn(what, std::forward<Work>(work));
  }
}

PeerBridge::Seat* PeerBridge::seat_of(engine::JobNumber job) {
  const auto found = seats_.find(job);
  return found == seats_.end() ? nullptr : &found->second;
}

/// The newest of that name: one that it superseded may still be ending.
PeerBridge::Seat* PeerBridge::coordinator_of(const engine::JobKey& key) {
  for (auto at = seats_.rbegin(); at != seats_.rend(); ++at) {
    if (at->second.port->key() == key) {
      return at->second.port->coordinates() ? &at->second : nullptr;
    }
  }
  return nullptr;
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
    if (seat->port->coordinates()) {
      assign_waiting(job, *seat);
    }
  }
}

template <typename Message>
void PeerBridge::send(net::LinkId link, const Message& message) {
  Result<std::string> text = rpc::encode_peer(message);
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
        send(to_member->link, to_member->message);
      }
    } else if (const auto* close = std::get_if<engine::CloseLink>(&each)) {
      accepted_.erase(close->link);
      links_->close(close->link);
    } else if (const auto* to_coordinator = std::get_if<engine::SendToCoordinator>(&each)) {
      if (seat.own_link != 0) {
        send(seat.own_link, to_coordinator->message);
      }
    } else if (const auto* open = std::get_if<engine::OpenLink>(&each)) {
      const auto parsed = parse_host_port(open->address);
      const auto own = parse_host_port(options_.listen);
      const std::uint16_t port = own && own->port.value_or(0) != 0 ? *own->port : net::kPeerPort;
      const bool bare = parsed && !parsed->port;
      seat.own_link = links_->connect(bare ? join_host_port(parsed->host, port) : open->address);
      opened_.emplace(seat.own_link, job);
    } else if (const net::LinkId link = std::exchange(seat.own_link, 0); link != 0) {
      opened_.erase(link);
      links_->close(link);
    }
  }
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
  for (auto& [job, seat] : seats_) {
    seat.timer.cancel();
  }
}

// ---- links

void PeerBridge::on_link(net::LinkId link, const net::LinkEnds& ends) {
  if (stopped_) {
    return;
  }
  if (ends.accepted) {
    accepted_.emplace(link, Accepted{ends.other_address});
    const engine::PeerHello hello{
        link, options_.incarnation, kVersion, engine::kPeerProtocol, options_.node, ends.other_address};
    send(link, engine::ToMember(hello));
    return;
  }
  const auto opened = opened_.find(link);
  if (opened == opened_.end()) {
    return;
  }
  const engine::JobNumber job = opened->second;
  spdlog::info("linked to {}, the node of rank 0", ends.other_address);
  turn("a link to another daemon", [&] {
    if (Seat* const seat = seat_of(job)) {
      tell(job, seat->port->on_own_link(ends.own_address));
    }
  });
}

void PeerBridge::on_text(net::LinkId link, std::string_view text) {
  if (stopped_) {
    return;
  }
  spdlog::trace("from another daemon link={} {}", link, text.substr(0, kTraced));
  if (const auto accepted = accepted_.find(link); accepted != accepted_.end()) {
    on_accepted_text(link, accepted->second, text);
    return;
  }
  const auto opened = opened_.find(link);
  if (opened == opened_.end()) {
    return;
  }
  Result<engine::ToMember> message = reader_.to_member(text);
  if (!message) {
    spdlog::warn("the link to the node of rank 0 ends: {}", message.error().message);
    end_link(link, message.error().message);
    return;
  }
  const engine::JobNumber job = opened->second;
  turn("a message of another daemon", [&] {
    if (Seat* const seat = seat_of(job)) {
      tell(job, seat->port->on_own_message(std::move(*message)));
    }
  });
}

void PeerBridge::on_accepted_text(net::LinkId link, Accepted& accepted, std::string_view text) {
  Result<engine::ToCoordinator> message = reader_.to_coordinator(text);
  if (!message) {
    spdlog::warn("the link from {} ends: {}", accepted.seen_address, message.error().message);
    end_link(link, message.error().message);
    return;
  }
  if (accepted.job != 0) {
    const engine::JobNumber job = accepted.job;
    const auto* join = std::get_if<engine::PeerJoin>(&*message);
    if (const Seat* const seat = seat_of(job); join != nullptr && seat != nullptr && join->job != seat->port->key()) {
      end_link(link, "it joined another job than before");
      return;
    }
    turn("a message of another daemon", [&] {
      if (Seat* const seat = seat_of(job)) {
        tell(job, seat->port->on_message(link, std::move(*message)));
      }
    });
    return;
  }
  if (auto* join = std::get_if<engine::PeerJoin>(&*message)) {
    accepted.join = std::move(*join);
    accepted.pause.reset();
    links_->joined(link);
    if (Seat* const seat = coordinator_of(accepted.join->job)) {
      assign_waiting(seat->port->job(), *seat);
    } else {
      wait_for_job(link, accepted);
    }
  } else if (auto* pause = std::get_if<engine::PeerPause>(&*message); pause != nullptr && accepted.join) {
    accepted.pause = std::move(*pause);
  } else if (!std::holds_alternative<engine::PeerBeat>(*message)) {
    end_link(link, "something came over it before it joined a job");
  }
}

// ---- which job a link is for

void PeerBridge::wait_for_job(net::LinkId link, Accepted& accepted) {
  const auto waiting = std::ranges::count_if(accepted_, [](const auto& each) {
    return each.second.job == 0 && each.second.join.has_value();
  });
  if (static_cast<std::size_t>(waiting) > kMostWaiting) {
    refuse(
        link,
        make_error(
            ErrorCode::LimitExceeded,
            fmt::format("{} nodes wait here for jobs that have no rank 0 on node '{}' yet", kMostWaiting, options_.node)
        )
    );
    return;
  }
  accepted.until = accepted.until.value_or(std::chrono::steady_clock::now() + options_.wait_for_job);
  if (waiting == 1) {
    refuse_overdue();
  }
}

/// Also starts the timer for the next.
void PeerBridge::refuse_overdue() {
  std::vector<net::LinkId> overdue;
  std::optional<TimePoint> next;
  for (const auto& [link, accepted] : accepted_) {
    if (accepted.job == 0 && accepted.until) {
      if (*accepted.until <= std::chrono::steady_clock::now()) {
        overdue.push_back(link);
      } else {
        next = std::min(next.value_or(*accepted.until), *accepted.until);
      }
    }
  }
  for (const net::LinkId link : overdue) {
    const std::string& job = accepted_.at(link).join->job.second;
    Error error = make_error(
        ErrorCode::UnknownJob,
        fmt::format(
            "no rank 0 of job '{}' came to node '{}' within {:.0f} s",
            job,
            options_.node,
            seconds(options_.wait_for_job)
        ),
        "GRADSYNC_COORDINATOR, or MASTER_ADDR, has to name the node of rank 0; its daemon has to be the one that rank "
        "0 "
        "attaches to"
    );
    error.job = job;
    error.node = options_.node;
    refuse(link, error);
  }
  if (next) {
    waiting_.expires_at(*next);
    waiting_.async_wait([this](boost::system::error_code error) {
      if (!error && !stopped_) {
        refuse_overdue();
      }
    });
  }
}

void PeerBridge::refuse(net::LinkId link, const Error& error) {
  send(link, engine::ToMember(engine::PeerRefused{error}));
  accepted_.erase(link);
  links_->close(link);
}

/// In a later turn, because this one may be that in which the job chose its role.
void PeerBridge::assign_waiting(engine::JobNumber job, Seat& seat) {
  const engine::JobKey key = seat.port->key();
  for (const auto& [link, accepted] : accepted_) {
    if (accepted.job == 0 && accepted.join && accepted.join->job == key) {
      boost::asio::post(io_, [this, link = link, job] {
        const auto found = accepted_.find(link);
        Seat* const coordinator = seat_of(job);
        if (found != accepted_.end() && found->second.job == 0 && found->second.join && coordinator != nullptr) {
          assign(link, found->second, *coordinator, job);
        }
      });
    }
  }
}

void PeerBridge::assign(net::LinkId link, Accepted& accepted, Seat& seat, engine::JobNumber job) {
  accepted.job = job;
  accepted.until.reset();
  turn("a node that joins", [&] {
    tell(job, seat.port->on_link(link, accepted.seen_address));
    tell(job, seat.port->on_message(link, std::move(*std::exchange(accepted.join, std::nullopt))));
    if (auto pause = std::exchange(accepted.pause, std::nullopt); pause && seat_of(job) != nullptr) {
      tell(job, seat.port->on_message(link, std::move(*pause)));
    }
  });
}

void PeerBridge::on_unreachable(net::LinkId link, const std::string& why) {
  if (opened_.contains(link)) {
    spdlog::warn("the node of rank 0 is not reached: {}", why);
  }
}

void PeerBridge::on_end(net::LinkId link, const std::string& why) { end_link(link, why); }

/// Nothing of the link counts from here on.
void PeerBridge::end_link(net::LinkId link, const std::string& why) {
  engine::JobNumber job = 0;
  bool accepted = false;
  if (const auto found = accepted_.find(link); found != accepted_.end()) {
    job = found->second.job;
    accepted = true;
    accepted_.erase(found);
  } else if (const auto opened = opened_.find(link); opened != opened_.end()) {
    job = opened->second;
    opened_.erase(opened);
  } else {
    return;
  }
  links_->close(link);
  Seat* const seat = stopped_ ? nullptr : seat_of(job);
  if (seat == nullptr) {
    return;
  }
  if (!accepted) {
    seat->own_link = 0;
  }
  spdlog::info("a link to another daemon ended: {}", why);
  boost::asio::post(io_, [this, link, job, accepted, why] {
    turn("the end of a link", [&] {
      if (Seat* const told = seat_of(job)) {
        tell(job, accepted ? told->port->on_link_ended(link, why) : told->port->on_own_link_ended(why));
      }
    });
  });
}

}  // namespace gradsync::app
