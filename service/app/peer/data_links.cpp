#include "app/peer/data_links.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>

namespace gradsync::app {

namespace {

constexpr std::array<net::DataPayload, 2> kPayloads{net::DataPayload::Partials, net::DataPayload::Results};

engine::JobKey key_of(const net::DataLinkHello& hello) { return {hello.uid, hello.job}; }

void note_closed(const net::DataLink& link, const char* why) {
  spdlog::info(
      "a data connection is closed job={} epoch={} address={}: {}",
      link.hello.job,
      link.hello.epoch,
      link.other_address,
      why
  );
}

}  // namespace

DataLinks::DataLinks(std::string incarnation, DataDialling& dialling)
    : incarnation_(std::move(incarnation)), dialling_(dialling) {}

std::optional<DataVerdict> DataLinks::want(
    TimePoint now, engine::JobNumber job, engine::JobKey key, engine::OpenDataLinks wanted
) {
  forget(job);
  Wish& wish = wishes_[job];
  wish = {std::move(key), wanted.epoch, wanted.own, {}, now + kPatience};
  for (engine::DataEnd& end : wanted.ends) {
    wish.ends.push_back({std::move(end), {}});
  }
  for (End& end : wish.ends) {
    for (const net::DataPayload payload : kPayloads) {
      if (end.end.node < wish.own) {
        dial(wish, end, payload);
      }
    }
  }
  take_early(wish);
  return ready(job);
}

void DataLinks::dial(const Wish& wish, End& end, net::DataPayload payload) {
  Slot& slot = end.slots[static_cast<std::size_t>(payload)];
  slot.retry_at.reset();
  slot.dial = dialling_.dial(
      end.end.address, {wish.key.second, wish.key.first, wish.epoch, payload, incarnation_, end.end.incarnation}
  );
}

void DataLinks::take_early(Wish& wish) {
  for (auto at = early_.begin(); at != early_.end();) {
    const bool of_job = key_of(at->link.hello) == wish.key;
    const Place place = of_job ? this->place(wish, at->link) : Place::TooEarly;
    if (place == Place::TooLate) {
      note_closed(at->link, "it is not for this epoch, or of another life of its node");
    }
    at = place == Place::TooEarly ? std::next(at) : early_.erase(at);
  }
}

/// One that comes again takes the place of the one before, whose other end has given it up.
DataLinks::Place DataLinks::place(Wish& wish, net::DataLink& link) const {
  const net::DataLinkHello& hello = link.hello;
  if (hello.epoch > wish.epoch) {
    return Place::TooEarly;
  }
  const auto end = std::ranges::find_if(wish.ends, [&](const End& each) {
    return each.end.node > wish.own && each.end.incarnation == hello.from;
  });
  if (hello.epoch < wish.epoch || end == wish.ends.end()) {
    return Place::TooLate;
  }
  end->slots[static_cast<std::size_t>(hello.payload)].socket = std::move(link.socket);
  return Place::Taken;
}

void DataLinks::give_up(Wish& wish) {
  for (End& end : wish.ends) {
    for (Slot& slot : end.slots) {
      if (slot.dial != 0) {
        dialling_.drop(slot.dial);
      }
    }
  }
  wish.ends.clear();
}

void DataLinks::forget(engine::JobNumber job) {
  if (const auto found = wishes_.find(job); found != wishes_.end()) {
    give_up(found->second);
  }
}

void DataLinks::erase(engine::JobNumber job) {
  forget(job);
  wishes_.erase(job);
}

std::optional<DataVerdict> DataLinks::on_arrived(TimePoint now, net::DataLink link) {
  if (link.hello.to != incarnation_) {
    note_closed(link, "it is meant for another life of this daemon");
    return std::nullopt;
  }
  // Where two jobs have the name, it is the later one's.
  const auto wish = std::find_if(wishes_.rbegin(), wishes_.rend(), [key = key_of(link.hello)](const auto& each) {
    return each.second.key == key;
  });
  const Place place = wish == wishes_.rend() ? Place::TooEarly : this->place(wish->second, link);
  if (place == Place::Taken) {
    return ready(wish->first);
  }
  if (place == Place::TooLate) {
    note_closed(link, "it is for an epoch that is over, or of another life of its node");
  } else if (early_.size() >= kMostEarly) {
    note_closed(link, "too many wait for their jobs here");
  } else {
    early_.push_back({std::move(link), now + kPatience});
  }
  return std::nullopt;
}

std::pair<engine::JobNumber, DataLinks::Slot*> DataLinks::slot_of(net::LinkId dial) {
  for (auto& [job, wish] : wishes_) {
    for (End& end : wish.ends) {
      const auto slot = std::ranges::find(end.slots, dial, &Slot::dial);
      if (slot != end.slots.end()) {
        return {job, &*slot};
      }
    }
  }
  return {0, nullptr};
}

std::optional<DataVerdict> DataLinks::on_dialled(net::LinkId dial, UniqueFd socket) {
  const auto [job, slot] = slot_of(dial);
  if (slot == nullptr) {
    return std::nullopt;
  }
  slot->dial = 0;
  slot->socket = std::move(socket);
  return ready(job);
}

void DataLinks::on_dial_failed(TimePoint now, net::LinkId dial, const std::string& why) {
  if (Slot* const slot = slot_of(dial).second; slot != nullptr) {
    slot->dial = 0;
    slot->why = why;
    slot->retry_at = now + slot->retry;
    slot->retry = std::min(2 * slot->retry, kLongestRetry);
  }
}

std::optional<DataVerdict> DataLinks::ready(engine::JobNumber job) {
  Wish& wish = wishes_.at(job);
  for (const End& end : wish.ends) {
    if (!std::ranges::all_of(end.slots, [](const Slot& slot) { return slot.socket.valid(); })) {
      return std::nullopt;
    }
  }
  engine::LinksReady ready{wish.epoch, {}};
  for (End& end : std::exchange(wish.ends, {})) {
    ready.connections.push_back({end.end.node, std::move(end.slots[0].socket), std::move(end.slots[1].socket)});
  }
  return DataVerdict{job, std::move(ready)};
}

/// The first node that is not connected is named.
Error DataLinks::failure_of(const Wish& wish) {
  const auto lacks = [](const End& end) {
    return std::ranges::any_of(end.slots, [](const Slot& slot) { return !slot.socket.valid(); });
  };
  const auto first = std::ranges::find_if(wish.ends, lacks);
  const auto missing = std::ranges::count_if(wish.ends, lacks);
  const Slot& slot = first->slots[first->slots[0].socket.valid() ? 1 : 0];
  const double waited = seconds(kPatience);
  const std::string what =
      first->end.node > wish.own
          ? fmt::format("it opened none within {:.0f} s", waited)
          : fmt::format("within {:.0f} s: {}", waited, slot.why.empty() ? "it does not answer" : slot.why);
  Error error = make_error(
      ErrorCode::NodeRefused,
      fmt::format(
          "no data connection with node '{}' ({}){}: {}",
          first->end.name,
          first->end.address,
          missing > 1 ? fmt::format(" and {} more", missing - 1) : "",
          what
      ),
      "gradients go from node to node: let the daemons of all nodes reach each other's [peer] listen"
  );
  error.node = first->end.name;
  error.job = wish.key.second;
  return error;
}

std::vector<DataVerdict> DataLinks::on_time(TimePoint now) {
  std::erase_if(early_, [now](const Early& early) {
    const bool over = early.until <= now;
    if (over) {
      note_closed(early.link, "its job did not want it in time");
    }
    return over;
  });
  std::vector<DataVerdict> verdicts;
  for (auto& [job, wish] : wishes_) {
    if (!wish.ends.empty() && wish.until <= now) {
      verdicts.emplace_back(job, engine::LinksFailed{wish.epoch, failure_of(wish)});
      give_up(wish);
    }
    for (End& end : wish.ends) {
      for (const net::DataPayload payload : kPayloads) {
        const auto& retry_at = end.slots[static_cast<std::size_t>(payload)].retry_at;
        if (retry_at && *retry_at <= now) {
          dial(wish, end, payload);
        }
      }
    }
  }
  return verdicts;
}

std::optional<TimePoint> DataLinks::next_deadline() const {
  std::optional<TimePoint> next;
  const auto note = [&next](TimePoint due) { next = std::min(next.value_or(due), due); };
  if (!early_.empty()) {
    note(early_.front().until);
  }
  for (const auto& [job, wish] : wishes_) {
    for (const End& end : wish.ends) {
      note(wish.until);
      for (const Slot& slot : end.slots) {
        if (slot.retry_at) {
          note(*slot.retry_at);
        }
      }
    }
  }
  return next;
}

}  // namespace gradsync::app
