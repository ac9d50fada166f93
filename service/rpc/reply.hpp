#pragma once
// The way of an answer back to its caller. A message opens a ReplyGroup; each of its requests holds a Completion, which
// is completed exactly once, perhaps much later, perhaps after the connection is gone. When the last of a group is
// complete, the group goes out: as one reply, as the array of a batch, or not at all when there were only
// notifications.

#include "base/clock.hpp"
#include "base/error.hpp"
#include "rpc/codec.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::rpc {

class ReplyGroup {
 public:
  using Deliver = std::function<void(std::string text, int http_status)>;

  ReplyGroup(bool batch, std::size_t requests, std::size_t message_bytes, Deliver deliver)
      : batch_(batch),
        message_bytes_(message_bytes),
        deliver_(std::move(deliver)),
        pending_(requests),
        replies_(requests) {}

  /// Empty text: nothing to say.
  void complete(std::size_t index, const std::optional<std::string>& id, std::string reply, int http_status);

  [[nodiscard]] std::size_t message_bytes() const { return message_bytes_; }

 private:
  [[nodiscard]] std::string batch_text();

  struct Item {
    std::optional<std::string> id;
    std::string text;
  };

  bool batch_;
  std::size_t message_bytes_;
  Deliver deliver_;
  std::size_t pending_;
  std::vector<Item> replies_;
  int http_status_ = 200;
};

/// One request under way.
class Completion {
 public:
  /// Called once with the error or nullptr, before the reply goes out: metrics, and the id is free again.
  using Done = std::function<void(const Error*)>;

  Completion(
      std::shared_ptr<ReplyGroup> group, std::size_t index, bool answered, std::optional<std::string> id, Done done
  )
      : group_(std::move(group)), index_(index), answered_(answered), id_(std::move(id)), done_(std::move(done)) {}

  void succeed(std::string result);
  void fail(const Error& error);

  /// Bytes that a result may have.
  [[nodiscard]] std::size_t room() const;

 private:
  std::shared_ptr<ReplyGroup> group_;
  std::size_t index_;
  bool answered_;  ///< false: a notification
  std::optional<std::string> id_;
  Done done_;
};

/// Result as text. Overloads in result_size.hpp, found by argument type, leave parts out to keep to `room` bytes; what
/// still does not fit is refused.
template <typename R>
[[nodiscard]] std::string render(const R& result, std::size_t) {
  return to_json(result);
}

/// What a handler answers with. Copyable, as engine replies are std::functions.
template <typename R>
class Answer {
 public:
  explicit Answer(std::shared_ptr<Completion> completion) : completion_(std::move(completion)) {}

  void operator()(const Result<R>& result) const {
    if (result) {
      completion_->succeed(render(*result, completion_->room()));
    } else {
      completion_->fail(result.error());
    }
  }

 private:
  std::shared_ptr<Completion> completion_;
};

}  // namespace gradsync::rpc
