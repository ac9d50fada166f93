#pragma once
// Opens one connection to a daemon whose address is known. It resolves the name and tries each of its addresses once;
// where none answers it ends, and its owner knows when to try again. What is said on the connection is the derived
// class's matter: a link, or a data connection.
//
// Thread: io only. Internal to net.

#include "base/text/host_port.hpp"
#include "net/peer/link_context.hpp"
#include "net/socket/asio_types.hpp"
#include "net/socket/peer_socket.hpp"

#include <memory>
#include <optional>
#include <string>

namespace gradsync::net {

class Dialler : public std::enable_shared_from_this<Dialler> {
 public:
  /// `address`: HOST or HOST:PORT.
  Dialler(const LinkContextPtr& context, LinkId id, std::string address);
  virtual ~Dialler() = default;
  Dialler(const Dialler&) = delete;
  Dialler& operator=(const Dialler&) = delete;

  /// An address that is none ends it.
  void start();

  /// Not once it is through.
  void stop(std::string why);

 protected:
  /// Says what has to be said on a connected socket. Why it came to nothing; empty: `through` was called.
  [[nodiscard]] virtual Task<std::string> serve(PeerSocket socket, std::string host) = 0;

  /// Ends what `serve` is doing.
  virtual void abort() = 0;

  /// For the owner: it has ended, without getting through.
  virtual void tell_end(std::string why) = 0;

  /// The other end took it: nothing else is tried.
  void through() { through_ = true; }

  [[nodiscard]] const LinkContextPtr& context() const { return context_; }

  [[nodiscard]] LinkId id() const { return id_; }

  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  Task<void> run();
  /// Why there is no connection; empty: it got through.
  Task<std::string> try_addresses();
  Task<std::string> try_address(NumericAddress address);
  Task<std::string> connect(NumericAddress address);
  /// nullopt: there is no answer yet.
  Task<std::optional<Resolved>> resolve();

  LinkContextPtr context_;
  const LinkId id_;
  const std::string address_;
  std::optional<HostPort> target_;
  std::optional<Resolver::Query> query_;  ///< under way
  std::optional<Resolved> resolved_;
  std::optional<PeerSocket> socket_;  ///< that connects
  Timer wait_;
  bool late_ = false;  ///< connecting
  bool through_ = false;
  bool stopped_ = false;
};

}  // namespace gradsync::net
