#pragma once
// Names of hosts become addresses on a thread of their own, because the system's resolver blocks for as long as name
// servers like. A lookup that hangs delays other lookups and nothing else.
//
// Thread: io only, beside the one started here with the first name. It is joined at the end; one that hangs in the
// system's resolver is left behind, and touches nothing but its own state.

#include "base/clock.hpp"
#include "net/peer_types.hpp"
#include "net/socket/asio_types.hpp"

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::net {

/// An address and a port, as the system takes them.
struct NumericAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

struct Resolved {
  std::vector<NumericAddress> addresses;  ///< in the order in which to try them; empty: none
  std::string why;                        ///< there is none, in words
};

/// A NameLookup: the system's, at most `kMostAddresses` addresses.
[[nodiscard]] Resolved look_up_name(const std::string& host, std::uint16_t port);

/// nullopt: the host is a name. Does not block.
[[nodiscard]] std::optional<NumericAddress> numeric_address(const std::string& host, std::uint16_t port);

class Resolver {
 public:
  using Query = std::uint64_t;
  using Done = std::function<void(Resolved)>;

  static constexpr std::size_t kMostAddresses = 4;
  static constexpr Milliseconds kPatience{1'000};  ///< for the lookup under way, at the end

  Resolver(asio::io_context& io, NameLookup lookup);
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  /// `done` is called in a later turn, unless the query is forgotten first. Names are looked up in the order asked. A
  /// query for a name that is being looked up gets that answer, so that one whose lookup takes longer than any try
  /// waits is found in the end.
  [[nodiscard]] Query resolve(std::string host, std::uint16_t port, Done done);
  void forget(Query query);

  /// Nothing is resolved any more, and `io` is not touched again. Waits for `kPatience` at most.
  void stop();

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with a thread that hangs
};

}  // namespace gradsync::net
