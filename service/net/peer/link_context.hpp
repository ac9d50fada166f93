#pragma once
// The state that the links of one daemon share. Thread: io only. Internal to net.

#include "net/limits/held_bytes.hpp"
#include "net/metrics.hpp"
#include "net/peer/resolver.hpp"
#include "net/peer_types.hpp"
#include "net/socket/asio_types.hpp"

#include <map>
#include <memory>
#include <string>

namespace gradsync::net {

class Dialler;
class PeerLink;

struct LinkContext : std::enable_shared_from_this<LinkContext> {
  LinkContext(asio::io_context& io_context, PeerOptions chosen, PeerSink& told, NetMetrics& counted)
      : io(io_context),
        options(std::move(chosen)),
        sink(told),
        metrics(counted),
        resolver(io_context, options.look_up ? options.look_up : look_up_name),
        half_sent(options.joining_bytes, 0) {}

  asio::io_context& io;
  PeerOptions options;
  PeerSink& sink;
  NetMetrics& metrics;
  std::string token;  ///< what both ends of a link have to know
  LinkId last_id = 0;
  std::map<LinkId, std::shared_ptr<PeerLink>> links;    ///< those that are open
  std::map<LinkId, std::shared_ptr<Dialler>> diallers;  ///< of links also while these are open
  Resolver resolver;
  HeldBytes half_sent;  ///< by links that have not joined: each is a process of its own
  bool closing_all = false;

  /// A link that has not joined holds that much of a message that has not ended. Where all of them hold too much, the
  /// one with most ends.
  void hold_joining(LinkId link, std::size_t bytes);

  /// The link is gone from here at once; the sink hears of it in a later turn, and once.
  void end(LinkId link, std::string why);

  /// The same for a data connection that this daemon opens. `socket`: none, and then `why`.
  void end_data(LinkId id, UniqueFd socket, std::string why);
};

using LinkContextPtr = std::shared_ptr<LinkContext>;

}  // namespace gradsync::net
