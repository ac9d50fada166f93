#include "rpc/reply.hpp"

#include "base/text.hpp"
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

void ReplyGroup::complete(std::size_t index, const std::optional<std::string>& id, std::string reply, int http_status) {
  replies_[index] = {id, std::move(reply)};
  if (!batch_) {
    http_status_ = http_status;
  }
  if (--pending_ == 0) {
    deliver_(batch_ ? batch_text() : std::move(replies_.front().text), http_status_);
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

void Completion::succeed(std::string result) {
  if (answered_ && result.size() > room()) {
    fail(too_long(result.size(), group_->message_bytes()));
    return;
  }
  done_(nullptr);
  group_->complete(index_, id_, answered_ ? result_reply(id_, result) : std::string(), 200);
}

void Completion::fail(const Error& error) {
  done_(&error);
  group_->complete(index_, id_, answered_ ? error_reply(id_, error) : std::string(), row_of(error.code).http);
}

}  // namespace gradsync::rpc
