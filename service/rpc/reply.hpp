#pragma once
// The way of an answer back to its caller. A message opens a ReplyGroup; each of its requests holds a Completion, which
// is completed exactly once, perhaps much later, perhaps after the connection is gone. When the last of a group is
// complete, the group goes out: as one reply, as the array of a batch, or not at all when there were only
// notifications.

#include "base/clock.hpp"
#include "base/error.hpp"
#include "rpc/audit.hpp"
#include "rpc/json/codec.hpp"
#include "rpc/types.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::rpc {

struct Core;

/// The caller, and the way its answer goes: to a connection, which may be gone by then as the dispatcher may, or into
/// the answer of a POST, which waits for it.
struct Asker {
  std::weak_ptr<Core> core;
  std::optional<ConnectionId> connection;
  PostReply* post = nullptr;

  void deliver(std::string text, int http_status) const;
};

class ReplyGroup {
 public:
  ReplyGroup(bool batch, std::size_t requests, std::size_t message_bytes, Asker asker)
      : batch_(batch),
        message_bytes_(message_bytes),
        asker_(std::move(asker)),
        pending_(requests),
        replies_(batch ? requests : 0) {}

  /// No more fits: the calls that are left in the batch are not made.
  [[nodiscard]] bool full() const { return batch_ && rendered_bytes_ >= message_bytes_; }

  /// A result of this size was made, for nothing.
  void wasted(std::size_t bytes) { rendered_bytes_ += bytes; }

  /// Empty text: nothing to say.
  void complete(std::size_t index, const std::optional<std::string>& id, std::string reply, int http_status);

  [[nodiscard]] std::size_t message_bytes() const { return message_bytes_; }

  [[nodiscard]] const Asker& asker() const { return asker_; }

 private:
  [[nodiscard]] std::string batch_text();

  struct Item {
    std::optional<std::string> id;
    std::string text;
  };

  bool batch_;
  std::size_t message_bytes_;
  Asker asker_;
  std::size_t pending_;
  std::vector<Item> replies_;       ///< the replies to the items of a batch
  std::size_t rendered_bytes_ = 0;  ///< those of all results so far
};

/// The entry of a request in the metrics when it is done.
struct Counted {
  std::size_t method = 0;  ///< index in the table, or its size
  bool id_in_use = false;  ///< the connection's id is this request's, until it is done
  TimePoint start{};
  std::optional<AuditedCall> audited = {};  ///< none: the log says nothing of it
};

/// One request under way.
class Completion {
 public:
  Completion(
      std::shared_ptr<ReplyGroup> group,
      std::size_t index,
      bool answered,
      std::optional<std::string> id,
      Counted counted
  )
      : group_(std::move(group)),
        index_(index),
        answered_(answered),
        id_(std::move(id)),
        counted_(std::move(counted)) {}

  void succeed(std::string_view result);
  void fail(const Error& error);

  /// False: a notification, whose result nobody reads.
  [[nodiscard]] bool answered() const { return answered_; }

  /// Bytes that a result may have.
  [[nodiscard]] std::size_t room() const;

 private:
  /// Metrics, and the id is free again: before the reply goes out.
  void note_done(const Error* error) const;

  std::shared_ptr<ReplyGroup> group_;
  std::size_t index_;
  bool answered_;  ///< false: a notification
  std::optional<std::string> id_;
  Counted counted_;
};

/// Result as text. Overloads in result_size.hpp, found by argument type, leave parts out to keep to `room` bytes; what
/// still does not fit is refused.
template <typename R>
[[nodiscard]] std::string render(const R& result, std::size_t) {
  return to_json(result);
}

/// The callback by which a handler answers. It is copyable, because engine replies are std::functions.
template <typename R>
class Answer {
 public:
  explicit Answer(std::shared_ptr<Completion> completion) : completion_(std::move(completion)) {}

  void operator()(const Result<R>& result) const {
    if (!result) {
      completion_->fail(result.error());
    } else {
      completion_->succeed(completion_->answered() ? render(*result, completion_->room()) : std::string());
    }
  }

  /// Answers with the text of a result that is made already; false: it is too long, and nothing was sent.
  [[nodiscard]] bool with_text(std::string_view text) const {
    const bool fits = text.size() <= completion_->room();
    if (fits) {
      completion_->succeed(text);
    }
    return fits;
  }

 private:
  std::shared_ptr<Completion> completion_;
};

}  // namespace gradsync::rpc
