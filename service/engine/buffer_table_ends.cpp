// How buffers, their tokens and sessions end.

#include "engine/buffer_table.hpp"

#include <algorithm>

namespace gradsync::engine {

void BufferTable::set_released(Buffer& buffer) {
  if (!buffer.released) {
    OfSession& of_session = sessions_.at(buffer.session);
    --of_session.held;
    of_session.bytes -= buffer.size_bytes;
    buffer.released = true;
  }
}

void BufferTable::release_all(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return;
  }
  found->second.gone = true;
  for (const std::uint64_t buffer : std::set(found->second.buffers)) {
    const auto it = buffers_.find(buffer);
    set_released(it->second);
    drop_if_unused(it);
  }
  forget_if_gone(session);
}

void BufferTable::unuse(std::uint64_t buffer) {
  const auto it = buffers_.find(buffer);
  if (it != buffers_.end()) {
    if (--it->second.users == 0 && !it->second.exported) {
      leave_lost_lanes(it->second);
    }
    drop_if_unused(it);
  }
}

void BufferTable::drop_if_unused(Buffers::iterator it) {
  Buffer& buffer = it->second;
  if (!buffer.released || buffer.users > 0) {
    return;
  }
  unmap_elsewhere(it->first, buffer);
  if (buffer.exported) {
    lanes_[buffer.lane].submit(device::UnmapBuffer{it->first});
  }
  // The lane punches the pages out, off the io thread: also those of a buffer that was never declared.
  if (buffer.fd.valid()) {
    arenas_.mapped -= buffer.size_bytes;
    arenas_.populated -= buffer.populated_bytes;
    of_memory_.erase(buffer.memory);
    lanes_[buffer.lane].submit(device::UnmapBuffer{it->first, std::move(buffer.fd), buffer.size_bytes});
  }
  erase(it);
}

void BufferTable::erase(Buffers::iterator it) {
  Buffer& buffer = it->second;
  set_released(buffer);
  if (buffer.fd.valid()) {
    arenas_.mapped -= buffer.size_bytes;
    arenas_.populated -= buffer.populated_bytes;
    of_memory_.erase(buffer.memory);
  }
  for (const device::LaneId other : buffer.elsewhere) {
    leave_lane(other);
  }
  if (buffer.exported) {
    close_exported(it->first, buffer);
  } else {
    bytes_.take(buffer.holder, buffer.size_bytes);
  }
  if (!buffer.token.empty()) {
    erase_token(tokens_.find(buffer.token));
  }
  const SessionId session = buffer.session;
  sessions_.at(session).buffers.erase(it->first);
  buffers_.erase(it);
  forget_if_gone(session);
}

/// A session that lives is remembered for its generation.
void BufferTable::forget_if_gone(SessionId session) {
  const auto found = sessions_.find(session);
  if (found != sessions_.end() && found->second.buffers.empty() &&
      (found->second.gone || found->second.generation == 0)) {
    sessions_.erase(found);
  }
}

/// Those of buffers come in the order in which they expire.
void BufferTable::forget_expired_tokens(TimePoint now) {
  while (!expiries_.empty() && expiries_.front().first <= now) {
    const auto buffer = buffers_.find(expiries_.front().second);
    expiries_.pop_front();
    if (buffer == buffers_.end() || buffer->second.token.empty()) {
      continue;  // it was used
    }
    erase_token(tokens_.find(buffer->second.token));
    if (!buffer->second.fd.valid()) {
      erase(buffer);  // an adoption that was never completed
    }
  }
}

/// A rank that was stopped while its declaration was answered must find the record all the same, so the token lives as
/// long as the record does. The records that are gone are looked for each time that there are twice as many tokens.
void BufferTable::forget_old_records() {
  if (record_tokens_.size() < look_for_old_at_) {
    return;
  }
  std::erase_if(tokens_, [](const auto& token) { return token.second.buffer == 0 && token.second.record.expired(); });
  std::erase_if(record_tokens_, [this](const auto& entry) { return !tokens_.contains(entry.second); });
  look_for_old_at_ = std::max<std::size_t>(1024, record_tokens_.size() * 2);
}

}  // namespace gradsync::engine
