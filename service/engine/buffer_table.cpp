#include "engine/buffer_table.hpp"

#include "base/assert.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "device/memory/arena.hpp"

#include <fmt/format.h>

#include <fcntl.h>

#include <algorithm>

namespace gradsync::engine {

namespace {

constexpr std::size_t kTokenBytes = 16;

UniqueFd duplicate(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

Error unknown_buffer(std::uint64_t buffer) {
  Error error = make_error(
      ErrorCode::UnknownBuffer,
      fmt::format("buffer {} does not exist in this session", buffer),
      "use the id that buffers.allocate returned on this connection"
  );
  error.path = "buffer";
  return error;
}

Result<TakenFd> taken_or_exhausted(TakenFd taken) {
  if (!taken.fd.valid()) {
    return make_error(ErrorCode::LimitExceeded, "the daemon is out of file descriptors", "raise its LimitNOFILE");
  }
  return taken;
}

}  // namespace

Result<BufferGrant> BufferTable::allocate(
    SessionId session, std::uint32_t uid, std::int64_t pid, std::uint64_t size_bytes, device::LaneId lane, TimePoint now
) {
  if (Result<void> room = check_room(session, size_bytes); !room) {
    return room.error();
  }
  std::uint64_t promised_bytes = 0;
  for (const auto& [id, buffer] : buffers_) {
    promised_bytes += device::unpopulated_bytes(buffer.fd.get());
  }
  Result<UniqueFd> fd = device::create_arena(size_bytes, promised_bytes);
  if (!fd) {
    return fd.error();
  }
  BufferGrant granted = grant(session, uid, pid, std::move(*fd), size_bytes, now);
  buffers_.at(granted.buffer).lane = lane;
  return granted;
}

Result<BufferGrant> BufferTable::adopt(
    SessionId session, std::uint32_t uid, std::int64_t pid, std::uint64_t size_bytes, TimePoint now
) {
  if (Result<void> room = check_room(session, size_bytes); !room) {
    return room.error();
  }
  return grant(session, uid, pid, UniqueFd{}, size_bytes, now);
}

Result<void> BufferTable::check_room(SessionId session, std::uint64_t size_bytes) const {
  if (size_bytes == 0) {
    return invalid_params("bytes", "bytes is 0", "an arena needs at least 64 bytes");
  }
  const auto held = std::count_if(buffers_.begin(), buffers_.end(), [&](const auto& entry) {
    return entry.second.session == session && !entry.second.released;
  });
  if (held >= options_.limits.buffers_per_session) {
    return make_error(
        ErrorCode::LimitExceeded,
        fmt::format(
            "this session holds {} buffers, the limit buffers_per_session is {}",
            held,
            options_.limits.buffers_per_session
        ),
        "release buffers, or raise limits.buffers_per_session"
    );
  }
  if (options_.limits.arena_bytes > 0 &&
      (size_bytes > options_.limits.arena_bytes || total_bytes_ > options_.limits.arena_bytes - size_bytes)) {
    return make_error(
        ErrorCode::LimitExceeded,
        fmt::format(
            "an arena of {} does not fit: {} of the limit arena_bytes {} are in use",
            human_bytes(size_bytes),
            human_bytes(total_bytes_),
            human_bytes(options_.limits.arena_bytes)
        ),
        "raise limits.arena_bytes"
    );
  }
  return {};
}

BufferGrant BufferTable::grant(
    SessionId session, std::uint32_t uid, std::int64_t pid, UniqueFd fd, std::uint64_t size_bytes, TimePoint now
) {
  BufferGrant grant{next_buffer_++, size_bytes, {}};
  Buffer& buffer = buffers_[grant.buffer];
  buffer.session = session;
  buffer.fd = std::move(fd);
  buffer.size_bytes = size_bytes;
  total_bytes_ += size_bytes;
  grant.token = add_token({grant.buffer, {}, 0, uid, pid, {}}, now);
  return grant;
}

RecordGrant BufferTable::grant_record(
    const std::shared_ptr<const StepRecord>& record,
    std::int64_t rank,
    std::uint32_t uid,
    std::int64_t pid,
    TimePoint now
) {
  // A rank has one at a time: those of earlier answers were never used, and never will be.
  std::erase_if(tokens_, [&](const auto& token) {
    return token.second.buffer == 0 && token.second.rank == rank && token.second.record.lock() == record;
  });
  return {add_token({0, record, rank, uid, pid, {}}, now), record->size_bytes()};
}

std::string BufferTable::add_token(Token token, TimePoint now) {
  forget_expired_tokens(now);
  std::string text = random_hex(kTokenBytes);
  token.expires = now + options_.deadlines.token;
  tokens_[text] = std::move(token);
  return text;
}

bool BufferTable::awaits_fd(const std::string& token, std::uint32_t uid, std::int64_t pid, TimePoint now) const {
  const auto found = tokens_.find(token);
  if (found == tokens_.end() || !found->second.belongs_to(uid, pid) || found->second.buffer == 0 ||
      found->second.expires <= now) {
    return false;
  }
  const auto buffer = buffers_.find(found->second.buffer);
  return buffer != buffers_.end() && !buffer->second.fd.valid();
}

Result<TakenFd> BufferTable::exchange(
    const std::string& token, std::uint32_t uid, std::int64_t pid, UniqueFd given, TimePoint now
) {
  forget_expired_tokens(now);
  const auto found = tokens_.find(token);
  // All reasons have one text: an answer must not tell a guesser that a token exists.
  const Error refused = make_error(
      ErrorCode::BadToken,
      "the token is unknown, used, expired or belongs to another process",
      "ask for a token anew and fetch the descriptor within its 10 s from the same process"
  );
  if (found == tokens_.end() || !found->second.belongs_to(uid, pid)) {
    return refused;
  }
  const Token owned = std::move(found->second);
  tokens_.erase(found);
  if (const std::shared_ptr<const StepRecord> record = owned.record.lock()) {
    return taken_or_exhausted({record->descriptor(), record->size_bytes()});
  }
  const auto buffer = buffers_.find(owned.buffer);
  if (buffer == buffers_.end()) {
    return refused;
  }
  if (!buffer->second.fd.valid()) {
    if (Result<void> taken = take_in(buffer->first, std::move(given)); !taken) {
      erase(buffer);
      return taken.error();
    }
    return TakenFd{UniqueFd{}, buffer->second.size_bytes};
  }
  return taken_or_exhausted({duplicate(buffer->second.fd), buffer->second.size_bytes});
}

Result<void> BufferTable::take_in(std::uint64_t buffer, UniqueFd given) {
  if (!given.valid()) {
    return invalid_params("fd", "no descriptor came with the token", "send the arena's descriptor along with it");
  }
  if (Result<void> checked = device::check_arena(given.get(), buffers_.at(buffer).size_bytes); !checked) {
    return checked;
  }
  const auto before = std::find_if(buffers_.begin(), buffers_.end(), [&](const auto& other) {
    return other.second.fd.valid() && device::same_memory(other.second.fd.get(), given.get());
  });
  if (before != buffers_.end()) {
    const Buffer& other = before->second;
    if (other.session != buffers_.at(buffer).session || other.map_submitted) {
      return invalid_params("fd", "this memory is in use as another buffer", "every rank hands back its own arena");
    }
    erase(before);  // handed back twice, because the first answer was lost: closed without freeing its pages
  }
  buffers_.at(buffer).fd = std::move(given);
  return {};
}

Result<void> BufferTable::release(SessionId session, std::uint64_t buffer) {
  const auto it = buffers_.find(buffer);
  if (it == buffers_.end() || it->second.session != session || it->second.released) {
    return unknown_buffer(buffer);
  }
  it->second.released = true;
  drop_if_unused(it);
  return {};
}

void BufferTable::release_all(SessionId session) {
  for (auto it = buffers_.begin(); it != buffers_.end();) {
    const auto next = std::next(it);
    if (it->second.session == session) {
      it->second.released = true;
      drop_if_unused(it);
    }
    it = next;
  }
}

void BufferTable::rename_session(SessionId from, SessionId to) {
  for (auto& [id, buffer] : buffers_) {
    if (buffer.session == from) {
      buffer.session = to;
    }
  }
}

Result<std::uint64_t> BufferTable::size_of(SessionId session, std::uint64_t buffer) const {
  const auto it = buffers_.find(buffer);
  if (it == buffers_.end() || it->second.session != session || it->second.released || !it->second.fd.valid()) {
    return unknown_buffer(buffer);
  }
  return it->second.size_bytes;
}

device::LaneId BufferTable::lane_of(std::uint64_t buffer) const {
  const auto it = buffers_.find(buffer);
  return it == buffers_.end() ? device::kHostLane : it->second.lane;
}

void BufferTable::use(std::uint64_t buffer) {
  Buffer& entry = buffers_.at(buffer);
  ++entry.users;
  if (!entry.map_submitted) {
    entry.map_submitted = true;
    lanes_[entry.lane].submit(device::MapBuffer{buffer, duplicate(entry.fd), entry.size_bytes});
  }
}

void BufferTable::unuse(std::uint64_t buffer) {
  const auto it = buffers_.find(buffer);
  if (it != buffers_.end()) {
    --it->second.users;
    drop_if_unused(it);
  }
}

void BufferTable::on_map_failed(device::LaneId lane, std::uint64_t buffer) {
  if (const auto it = buffers_.find(buffer); it != buffers_.end()) {
    GRADSYNC_ASSERT(it->second.lane == lane, "a lane maps the buffers that it was given");
    it->second.map_submitted = false;
  }
}

std::uint64_t BufferTable::bytes_of(SessionId session) const {
  std::uint64_t bytes = 0;
  for (const auto& [id, buffer] : buffers_) {
    if (buffer.session == session && !buffer.released) {
      bytes += buffer.size_bytes;
    }
  }
  return bytes;
}

void BufferTable::drop_if_unused(std::map<std::uint64_t, Buffer>::iterator it) {
  Buffer& buffer = it->second;
  if (!buffer.released || buffer.users > 0) {
    return;
  }
  // The lane punches the pages out, off the io thread: also those of a buffer that was never declared.
  if (buffer.fd.valid()) {
    lanes_[buffer.lane].submit(device::UnmapBuffer{it->first, std::move(buffer.fd), buffer.size_bytes});
  }
  erase(it);
}

void BufferTable::erase(std::map<std::uint64_t, Buffer>::iterator it) {
  total_bytes_ -= it->second.size_bytes;
  std::erase_if(tokens_, [&](const auto& token) { return token.second.buffer == it->first; });
  buffers_.erase(it);
}

void BufferTable::forget_expired_tokens(TimePoint now) {
  for (auto token = tokens_.begin(); token != tokens_.end();) {
    // A rank that was stopped while its declaration was answered must find the record all the same.
    const bool of_record = token->second.buffer == 0;
    const bool expired = of_record ? token->second.record.expired() : token->second.expires <= now;
    const auto buffer = buffers_.find(token->second.buffer);
    token = expired ? tokens_.erase(token) : std::next(token);
    if (expired && buffer != buffers_.end() && !buffer->second.fd.valid()) {
      erase(buffer);  // an adoption that was never completed
      token = tokens_.begin();
    }
  }
}

}  // namespace gradsync::engine
