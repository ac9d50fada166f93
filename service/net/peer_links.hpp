#pragma once
// The links of this daemon to daemons of other nodes: those that it accepts, through the server's listener for them,
// and those that it opens. Beast and Asio stay in .cpp files.
//
// Thread: io only, beside one that resolves names, started with the first of them.

#include "net/peer_types.hpp"

#include <memory>
#include <string>

namespace boost::asio {
class io_context;
}

namespace gradsync::net {

struct LinkContext;
struct NetMetrics;

/// The sink must outlive the links, and the io context must not run on after they are destroyed.
class PeerLinks {
 public:
  PeerLinks(boost::asio::io_context& io, PeerOptions options, PeerSink& sink, NetMetrics& metrics);
  ~PeerLinks();
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  /// Both ends have to know the same one. The server sets that of its `peer_token_file`.
  void use_token(std::string token);

  /// `address`: HOST or HOST:PORT; without a port kPeerPort. Each address of the host is tried once.
  LinkId connect(std::string address);

  /// Opens a data connection to the daemon there; `on_data_connected` or `on_data_failed` follows, with this number.
  LinkId connect_data(std::string address, DataLinkHello hello);

  /// In order. A link that has ended takes no more; one whose other end does not read ends.
  void send(LinkId link, std::string text);
  void joined(LinkId link);  ///< an accepted link may stay, and no longer takes a place of those that wait to join
  void close(LinkId link);   ///< texts that wait are written first, for a second at most. Nothing more is read
  void drop(LinkId link);    ///< at once; also a data connection that is being opened

  void close_all();  ///< as `close`, and no link is opened any more

  [[nodiscard]] const std::shared_ptr<LinkContext>& context() const { return context_; }  ///< internal to net

 private:
  std::shared_ptr<LinkContext> context_;
};

}  // namespace gradsync::net
