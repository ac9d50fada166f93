#include "net/peer/link_context.hpp"

#include "net/peer/dialler.hpp"
#include "net/peer/link_words.hpp"
#include "net/peer/peer_link.hpp"

#include <boost/asio/post.hpp>
#include <spdlog/spdlog.h>

namespace gradsync::net {

void LinkContext::hold_joining(LinkId link, std::size_t bytes) {
  PeerIdentity alone;  // each for itself
  alone.pid = static_cast<std::int64_t>(link);
  const auto excess = half_sent.note(link, alone, bytes);
  const auto found = excess ? links.find(excess->connection) : links.end();
  if (found != links.end()) {
    const std::shared_ptr<PeerLink> leaves = found->second;
    leaves->drop(too_much_joining(excess->most));
  }
}

void LinkContext::end(LinkId link, std::string why) {
  const std::size_t open = links.erase(link);
  const std::size_t known = open + diallers.erase(link);
  if (known == 0 || io.stopped()) {  // stopped: coroutines are destroyed with the io context, and the sink may be gone
    return;
  }
  // A daemon that is away for an hour is tried many times: its owner says that once.
  spdlog::log(open > 0 ? spdlog::level::info : spdlog::level::debug, "link ended link={}: {}", link, why);
  asio::post(io, [self = shared_from_this(), link, moved = std::move(why)] {
    const IoWatch::Turn turn{self->metrics.io_watch, "the end of a link"};
    self->sink.on_end(link, moved);
  });
}

void LinkContext::end_data(LinkId id, UniqueFd socket, std::string why) {
  if (diallers.erase(id) == 0 || io.stopped()) {
    return;
  }
  asio::post(io, [self = shared_from_this(), id, taken = std::move(socket), moved = std::move(why)]() mutable {
    const IoWatch::Turn turn{self->metrics.io_watch, "a data connection"};
    if (taken.valid()) {
      self->sink.on_data_connected(id, std::move(taken));
    } else {
      self->sink.on_data_failed(id, moved);
    }
  });
}

}  // namespace gradsync::net
