#pragma once
// Links to daemons of other nodes, as their owner sees them: who is at the other end, the interface that app
// implements, options. A link carries texts, in order and both ways; their meaning is not known here.

#include "base/clock.hpp"
#include "net/data_types.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace gradsync::net {

using LinkId = std::uint64_t;  ///< a later link has a higher one

/// The port of other daemons where their address names none.
inline constexpr std::uint16_t kPeerPort = 9478;

/// As the kernel says: numeric addresses without ports, IPv4 where both ends have one.
struct LinkEnds {
  bool accepted = false;  ///< the other daemon connected to this one
  std::string own_address;
  std::string other_address;
};

/// Nothing is called while the owner is inside a call of PeerLinks, and nothing of a link after its `on_end`.
class PeerSink {
 public:
  virtual ~PeerSink() = default;
  /// The link is open: both ends know the token. Texts may be sent from within.
  virtual void on_link(LinkId link, const LinkEnds& ends) = 0;
  virtual void on_text(LinkId link, std::string_view text) = 0;
  /// Exactly once for each link that `on_link` named or `connect` returned, also where the owner ended it or the other
  /// daemon was not reached. It is final.
  virtual void on_end(LinkId link, const std::string& why) = 0;

  /// Another daemon that knows the token opened a data connection to this one. Whether anybody wants it is not known.
  virtual void on_data_link(DataLink link) = 0;
  /// One of these two follows each `connect_data`, once, also where the owner dropped it. The other end has the token,
  /// and took it: whether anybody there wants it is not known. The socket is as in DataLink.
  virtual void on_data_connected(LinkId id, UniqueFd socket) = 0;
  virtual void on_data_failed(LinkId id, const std::string& why) = 0;
};

struct Resolved;

/// Blocks until the system's resolver has answered. Any thread may call it.
using NameLookup = std::function<Resolved(const std::string& host, std::uint16_t port)>;

struct PeerOptions {
  std::string beat_text;  ///< goes out in each `beat` in which nothing else does
  Milliseconds beat{1'000};
  Milliseconds dead{5'000};     ///< without a byte for so long a link ends; also what is not acknowledged for so long
  Milliseconds join{10'000};    ///< until the owner says that an accepted link has joined
  Milliseconds resolve{5'000};  ///< for a name
  Milliseconds connect{5'000};  ///< to connect to one address; as much again to shake hands, or for an answer
  std::size_t link_message_bytes = 16u << 20;
  std::size_t link_unread_bytes = 64u << 20;  ///< what waits to be sent; a link that has more ends
  std::size_t joining_bytes = 256u << 20;     ///< unfinished messages of all links that have not joined
  NameLookup look_up = {};                    ///< empty: the system's. For tests
};

}  // namespace gradsync::net
