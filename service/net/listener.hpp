#pragma once
// Accepts connections and starts a coroutine for each. Running out of descriptors pauses accepting, and says so;
// nothing a peer does ends the loop. Plain accept4, because Asio's accept leaves descriptors open across exec.
//
// Thread: io only. Internal to net.

#include "net/server_context.hpp"

namespace gradsync::net {

class Listener : public std::enable_shared_from_this<Listener> {
 public:
  Listener(const ContextPtr& context, UniqueFd fd, Entrance entrance);
  void start();
  void close();

 private:
  enum class AcceptResult { Accepted, Empty, Exhausted };

  Task<void> run();
  AcceptResult accept_burst();
  AcceptResult accept_one();
  [[nodiscard]] AcceptResult none_accepted(int error) const;
  void refuse(UniqueFd socket, const PeerIdentity& peer, const Error& error, bool forbidden) const;
  /// Notes who the local peer is; false: it is gone already, or refused.
  [[nodiscard]] bool admit_local(Incoming& incoming) const;
  /// Makes room, where there is none, at the cost of the address that has most. Returns why that is not possible.
  [[nodiscard]] std::optional<Error> refuse_tcp(const Incoming& incoming) const;
  /// Closes the first of them that may be; false: none may.
  [[nodiscard]] bool close_one_of(const std::list<ConnectionId>& candidates, std::string_view why) const;
  void serve(Incoming incoming);

  ContextPtr context_;
  Descriptor listening_;
  Timer pause_;
  Entrance entrance_;
  std::shared_ptr<Closer> closer_;  ///< none where no descriptor can come
  bool closed_ = false;
};

}  // namespace gradsync::net
