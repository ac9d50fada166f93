#include "rpc/reply.hpp"

#include "base/text/text.hpp"
#include "rpc/core.hpp"
#include "rpc/envelope.hpp"
#include "rpc/error_codes.hpp"

#include <fmt/format.h>

namespace gradsync::rpc {

namespace {

constexpr std::size_t kEnvelopeBytes = 64;  // of a reply, its id apart

Error too_long(std::size_t size_bytes, std::size_t most) {
  return make_error(
      ErrorCode::LimitExceeded,
      fmt::format("the reply has {} and a message at most {}", human_bytes(size_bytes), human_bytes(most)),
      "ask for less: a smaller limit, or fewer requests in one batch"
  );
}

}  // namespace

void Asker::deliver(std::string text, int http_status) const {
  if (post != nullptr) {
    post->status = text.empty() ? 204 : http_status;
    post->body = std::move(text);
    post->complete = true;
    if (const std::function<void()> tell = std::exchange(post->on_complete, {})) {
      tell();
    }
    return;
  }
  const std::shared_ptr<Core> alive = core.lock();
  if (!text.empty() && alive && alive->connections.contains(*connection)) {
    alive->outbox.send(*connection, std::move(text));
  }
}

void ReplyGroup::complete(std::size_t index, const std::optional<std::string>& id, std::string reply, int http_status) {
  --pending_;
  if (!batch_) {
    asker_.deliver(std::move(reply), http_status);
    return;
  }
  rendered_bytes_ += reply.size();
  replies_[index] = {id, std::move(reply)};
  if (pending_ == 0) {
    asker_.deliver(batch_text(), 200);
  }
}

std::string ReplyGroup::batch_text() {
  std::string text;
  for (Item& item : replies_) {
    if (item.text.empty()) {
      continue;
    }
    // An item that no longer fits is replaced by an error, so that the others still arrive.
    if (text.size() + item.text.size() + 2 > message_bytes_) {
      item.text = error_reply(item.id, too_long(text.size() + item.text.size(), message_bytes_));
    }
    text += text.empty() ? "[" : ",";
    text += item.text;
  }
  return text.empty() ? text : text + "]";
}

std::size_t Completion::room() const {
  const std::size_t taken = kEnvelopeBytes + (id_ ? id_->size() : 4);
  return group_->message_bytes() > taken ? group_->message_bytes() - taken : 0;
}

void Completion::note_done(const Error* error) const {
  const Asker& asker = group_->asker();
  const std::shared_ptr<Core> core = asker.core.lock();
  if (!core) {
    return;
  }
  const TimePoint now = core->moment().now;
  core->metrics.request_done(counted_.method, error, seconds(now - counted_.start));
  if (counted_.audited) {
    core->audit.write(*counted_.audited, error, now);
  }
  if (counted_.id_in_use) {
    if (const auto at = core->connections.find(*asker.connection); at != core->connections.end()) {
      at->second.ids.end(*id_);
    }
  }
}

void Completion::succeed(std::string_view result) {
  if (answered_ && result.size() > room()) {
    group_->wasted(result.size());
    fail(too_long(result.size(), group_->message_bytes()));
    return;
  }
  note_done(nullptr);
  group_->complete(index_, id_, answered_ ? result_reply(id_, result) : std::string(), 200);
}

void Completion::fail(const Error& error) {
  note_done(&error);
  group_->complete(index_, id_, answered_ ? error_reply(id_, error) : std::string(), row_of(error.code).http);
}

}  // namespace gradsync::rpc
