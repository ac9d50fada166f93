#pragma once
// Opens one link to a daemon whose address is known. Thread: io only. Internal to net.

#include "net/peer/dialler.hpp"

#include <memory>
#include <string>

namespace gradsync::net {

class PeerLink;

class PeerConnector final : public Dialler {
 public:
  using Dialler::Dialler;

 private:
  Task<std::string> serve(PeerSocket socket, std::string host) override;  ///< until the link has ended
  void abort() override;
  void tell_end(std::string why) override;

  std::shared_ptr<PeerLink> link_;
};

}  // namespace gradsync::net
