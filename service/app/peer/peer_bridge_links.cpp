// The bridge's links: what comes over them, which job an accepted one is for, and how they end.

#include "app/peer/peer_bridge.hpp"
#include "base/version.hpp"

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace gradsync::app {

namespace {

constexpr std::size_t kMostWaiting = 256;        // JOINs of jobs that are not here, which may have 16 MiB each
constexpr std::size_t kTracedOfIncoming = 1024;  // bytes of a message in the log

}  // namespace

void PeerBridge::on_link(net::LinkId link, const net::LinkEnds& ends) {
  if (stopped_) {
    return;
  }
  if (ends.accepted) {
    accepted_.emplace(link, Accepted{ends.other_address});
    const engine::PeerHello hello{
        link, options_.incarnation, kVersion, engine::kPeerProtocol, options_.node, ends.other_address};
    send(link, rpc::encode_peer(engine::ToMember(hello)));
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
  spdlog::trace("from another daemon link={} {}", link, text.substr(0, kTracedOfIncoming));
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
  on_first_message(link, accepted, std::move(*message));
}

/// Before it is known which job the link is for.
void PeerBridge::on_first_message(net::LinkId link, Accepted& accepted, engine::ToCoordinator message) {
  if (auto* join = std::get_if<engine::PeerJoin>(&message)) {
    accepted.join = std::move(*join);
    accepted.pause.reset();
    links_->joined(link);
    if (Seat* const seat = coordinator_of(accepted.join->job); seat != nullptr && !is_own(*accepted.join)) {
      assign(link, accepted, *seat, seat->port->job());
    } else {
      wait_for_job(link, accepted);
    }
  } else if (auto* pause = std::get_if<engine::PeerPause>(&message); pause != nullptr && accepted.join) {
    accepted.pause = std::move(*pause);
  } else if (!std::holds_alternative<engine::PeerBeat>(message)) {
    end_link(link, "something came over it before it joined a job");
  }
}

void PeerBridge::wait_for_job(net::LinkId link, Accepted& accepted) {
  const auto waiting = std::ranges::count_if(accepted_, [](const auto& each) {
    return each.second.job == 0 && each.second.join.has_value();
  });
  if (static_cast<std::size_t>(waiting) > kMostWaiting) {
    refuse(
        link,
        make_error(
            ErrorCode::LimitExceeded,
            fmt::format(
                "{} nodes wait here for jobs that have no rank 0 on node '{}' yet", kMostWaiting, options_.node
            ),
            "start rank 0 of these jobs on that node, or end their other ranks"
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
        "start rank 0 with this daemon, or name its node in GRADSYNC_COORDINATOR or MASTER_ADDR"
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
  send(link, rpc::encode_peer(engine::ToMember(engine::PeerRefused{error})));
  accepted_.erase(link);
  links_->close(link);
}

/// Other ranks of this node came before rank 0, and had this daemon look for it at its own address. What they said
/// there is not said by another node: the link is dropped when rank 0 comes, or is overdue like any other.
bool PeerBridge::is_own(const engine::PeerJoin& join) const { return join.incarnation == options_.incarnation; }

/// Rank 0 of the job has come.
void PeerBridge::assign_waiting(const engine::JobKey& key) {
  std::vector<net::LinkId> waiting;
  for (const auto& [link, accepted] : accepted_) {
    if (accepted.job == 0 && accepted.join && accepted.join->job == key && !is_own(*accepted.join)) {
      waiting.push_back(link);
    }
  }
  for (const net::LinkId link : waiting) {
    Seat* const seat = coordinator_of(key);
    const auto found = accepted_.find(link);
    if (seat != nullptr && found != accepted_.end()) {
      assign(link, found->second, *seat, seat->port->job());
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

void PeerBridge::on_end(net::LinkId link, const std::string& why) { end_link(link, why); }

/// Nothing of the link counts from here on. Its machine hears of it in a turn of its own.
void PeerBridge::end_link(net::LinkId link, const std::string& why) {
  links_->close(link);
  if (const auto found = accepted_.find(link); found != accepted_.end()) {
    const engine::JobNumber job = found->second.job;
    accepted_.erase(found);
    if (job == 0) {
      return;
    }
    boost::asio::post(io_, [this, link, job, why] {
      turn("the end of a link", [&] {
        if (Seat* const seat = seat_of(job)) {
          tell(job, seat->port->on_link_ended(link, why));
        }
      });
    });
  } else if (const auto opened = opened_.find(link); opened != opened_.end()) {
    const engine::JobNumber job = opened->second;
    opened_.erase(opened);
    boost::asio::post(io_, [this, link, job, why] { end_own_link(job, link, why); });
  }
}

/// Unless the machine has dropped it meanwhile, and perhaps opened another.
void PeerBridge::end_own_link(engine::JobNumber job, net::LinkId link, const std::string& why) {
  turn("the end of a link", [&] {
    Seat* const seat = seat_of(job);
    if (seat != nullptr && seat->own_link == link) {
      seat->own_link = 0;
      tell(job, seat->port->on_own_link_ended(why));
    }
  });
}

}  // namespace gradsync::app
