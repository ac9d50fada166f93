#pragma once
// Opens one data connection to a daemon whose address is known. Thread: io only. Internal to net.

#include "net/data_types.hpp"
#include "net/peer/dialler.hpp"

#include <optional>
#include <string>

namespace gradsync::net {

class DataConnector final : public Dialler {
 public:
  DataConnector(const LinkContextPtr& context, LinkId id, std::string address, DataLinkHello hello);

 private:
  Task<std::string> serve(PeerSocket socket, std::string host) override;
  void abort() override;
  void tell_end(std::string why) override;

  Task<std::string> ask(std::string host);

  const DataLinkHello hello_;
  std::optional<PeerSocket> socket_;  ///< while the other end is asked
  Timer deadline_;
  bool late_ = false;
};

}  // namespace gradsync::net
