#pragma once
// What a peer has sent to the fd socket, looked at and never taken out: a descriptor is received only when it is asked
// for, and as a second copy, of which the closing is never the last. Thread: io only. Internal to net.

#include "base/unique_fd.hpp"

#include <string>

namespace gradsync::net {

class PeekedLine {
 public:
  explicit PeekedLine(int socket);

  /// Appends what has come since; false: the peer is gone, or cannot be looked at.
  [[nodiscard]] bool read_on();

  [[nodiscard]] const std::string& text() const { return text_; }

  [[nodiscard]] bool carries_descriptor() const { return first_descriptor_at_ >= 0; }

  /// The first one that came, or none where the process has no room for it.
  [[nodiscard]] UniqueFd duplicate_descriptor();

 private:
  int socket_;
  std::string text_;
  int first_descriptor_at_ = -1;  ///< bytes from the beginning
};

}  // namespace gradsync::net
