#include "engine/buffer_table.hpp"

#include "base/assert.hpp"
#include "base/descriptors.hpp"
#include "base/text/hash.hpp"
#include "base/text/text.hpp"
#include "device/memory/arena.hpp"

#include <fmt/format.h>

#include <fcntl.h>

#include <algorithm>

namespace gradsync::engine {

namespace {

constexpr std::size_t kTokenBytes = 16;

Error unknown_buffer(std::uint64_t buffer) {
  Error error = make_error(
      ErrorCode::UnknownBuffer,
      fmt::format("buffer {} does not exist in this session", buffer),
      "use the id that buffers.allocate returned on this connection"
  );
  error.path = "buffer";
  return error;
}

Error lost_buffer(std::uint64_t buffer, const std::string& gpu) {
  Error error = make_error(
      ErrorCode::UnknownBuffer,
      fmt::format("buffer {} was lost with the worker of {}", buffer, gpu),
      "register it again, with a higher generation"
  );
  error.path = "buffer";
  return error;
}

Result<TakenFd> taken_or_exhausted(TakenFd taken) {
  if (!taken.fd.valid()) {
    return no_descriptors_left("for what the token stands for");
  }
  return taken;
}

/// Without a setting a uid may have three quarters of the memory of the machine or of the cgroup. Whether the memory is
/// there is asked for each buffer, and where there is one process, its arena may well be most of it.
FairBudget arena_budget(const EngineOptions& options) {
  if (options.limits.arena_bytes > 0) {
    return {options.limits.arena_bytes, options.own_uid};
  }
  return {options.measure_memory({}).limit_bytes, options.own_uid, FairBudget::Bounds::OfUids};
}

}  // namespace

BufferTable::BufferTable(const EngineOptions& options, const Lanes& lanes)
    : options_(options),
      lanes_(lanes),
      bytes_(arena_budget(options)),
      waiting_tokens_(static_cast<std::uint64_t>(options.limits.tokens), options.own_uid) {}

UniqueFd BufferTable::duplicate(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

Result<BufferGrant> BufferTable::allocate(
    SessionId session, std::uint32_t uid, std::int64_t pid, std::uint64_t size_bytes, device::LaneId lane, TimePoint now
) {
  forget_expired_tokens(now);
  const Holder holder{uid, pid};
  if (Result<void> sound = check_request(session, size_bytes); !sound) {
    return sound.error();
  }
  if (Result<void> fits = check_memory(size_bytes, 0); !fits) {
    return fits.error();
  }
  if (Result<void> share = check_share(holder, size_bytes); !share) {
    return share.error();
  }
  Result<UniqueFd> fd = device::create_arena(size_bytes);
  if (!fd) {
    return fd.error();
  }
  BufferGrant granted = grant(session, holder, size_bytes, now);
  const auto it = buffers_.find(granted.buffer);
  it->second.lane = lane;
  fill(it, std::move(*fd));
  return granted;
}

Result<BufferGrant> BufferTable::adopt(
    SessionId session, std::uint32_t uid, std::int64_t pid, std::uint64_t size_bytes, TimePoint now
) {
  forget_expired_tokens(now);
  const Holder holder{uid, pid};
  if (Result<void> sound = check_request(session, size_bytes); !sound) {
    return sound.error();
  }
  if (Result<void> share = check_share(holder, size_bytes); !share) {
    return share.error();
  }
  return grant(session, holder, size_bytes, now);
}

Result<void> BufferTable::check_count(SessionId session) const {
  const auto found = sessions_.find(session);
  const std::int64_t held = found == sessions_.end() ? 0 : found->second.held;
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
  return {};
}

Result<void> BufferTable::check_request(SessionId session, std::uint64_t size_bytes) const {
  if (size_bytes == 0) {
    return invalid_params("bytes", "bytes is 0", "an arena needs at least 64 bytes");
  }
  return check_count(session);
}

Result<void> BufferTable::check_share(const Holder& holder, std::uint64_t size_bytes) const {
  if (const auto refused = bytes_.refuse(holder, size_bytes)) {
    return make_error(
        ErrorCode::LimitExceeded,
        fmt::format(
            "an arena of {} does not fit: {} holds {} of {} (limit arena_bytes {})",
            human_bytes(size_bytes),
            refused->whose,
            human_bytes(refused->held),
            human_bytes(refused->most),
            human_bytes(bytes_.most())
        ),
        "free arenas that are not needed, or set limits.arena_bytes higher"
    );
  }
  if (const auto refused = waiting_tokens_.refuse(holder)) {
    return make_error(
        ErrorCode::LimitExceeded,
        fmt::format(
            "{} has {} tokens that were not used, its limit is {}", refused->whose, refused->held, refused->most
        ),
        "fetch the descriptors of the buffers that you ask for, or release the buffers"
    );
  }
  return {};
}

/// Whether there is memory for one buffer more. A client can punch out what it filled, so that what was looked at once
/// does not stay true.
Result<void> BufferTable::check_memory(std::uint64_t size_bytes, std::uint64_t populated_bytes) {
  look_at_some();
  const auto overflows = [](std::uint64_t a, std::uint64_t b) { return a > FairBudget::kUnlimited - b; };
  device::ArenaBytes with_it = arenas_;
  with_it.mapped = overflows(with_it.mapped, size_bytes) ? FairBudget::kUnlimited : with_it.mapped + size_bytes;
  with_it.populated += populated_bytes;
  return device::check_headroom(size_bytes, options_.measure_memory(with_it));
}

/// Some at a time, because each takes a system call: with up to `kLooks` buffers all are looked at.
void BufferTable::look_at_some() {
  constexpr std::size_t kLooks = 256;
  const std::size_t looks = std::min(kLooks, buffers_.size());
  for (std::size_t i = 0; i < looks; ++i) {
    auto it = buffers_.upper_bound(looked_at_);
    it = it == buffers_.end() ? buffers_.begin() : it;
    looked_at_ = it->first;
    Buffer& buffer = it->second;
    if (buffer.fd.valid()) {
      arenas_.populated -= buffer.populated_bytes;
      buffer.populated_bytes = device::populated_bytes(buffer.fd.get());
      arenas_.populated += buffer.populated_bytes;
    }
  }
}

BufferGrant BufferTable::grant(SessionId session, const Holder& holder, std::uint64_t size_bytes, TimePoint now) {
  BufferGrant grant{next_buffer_, size_bytes, {}};
  Buffer& buffer = add(session, holder, size_bytes);
  bytes_.add(holder, size_bytes);
  Token token;
  token.buffer = grant.buffer;
  token.holder = holder;
  token.expires = now + options_.deadlines.token;
  const TimePoint expires = token.expires;
  grant.token = add_token(std::move(token));
  buffer.token = grant.token;
  waiting_tokens_.add(holder);
  expiries_.emplace_back(expires, grant.buffer);
  return grant;
}

BufferTable::Buffer& BufferTable::add(SessionId session, const Holder& holder, std::uint64_t size_bytes) {
  const std::uint64_t id = next_buffer_++;
  Buffer& buffer = buffers_[id];
  buffer.session = session;
  buffer.holder = holder;
  buffer.size_bytes = size_bytes;
  OfSession& of_session = sessions_[session];
  of_session.buffers.insert(id);
  ++of_session.held;
  of_session.bytes += size_bytes;
  return buffer;
}

void BufferTable::fill(Buffers::iterator it, UniqueFd fd) {
  Buffer& buffer = it->second;
  buffer.fd = std::move(fd);
  buffer.populated_bytes = device::populated_bytes(buffer.fd.get());
  buffer.memory = device::memory_of(buffer.fd.get());
  of_memory_[buffer.memory] = it->first;
  arenas_.mapped += buffer.size_bytes;
  arenas_.populated += buffer.populated_bytes;
}

RecordGrant BufferTable::grant_record(
    const std::shared_ptr<const StepRecord>& record,
    std::int64_t rank,
    std::uint32_t uid,
    std::int64_t pid,
    TimePoint now
) {
  forget_expired_tokens(now);
  forget_old_records();
  // A rank has one at a time: those of earlier answers were never used, and never will be.
  const std::pair key{record.get(), rank};
  if (const auto before = record_tokens_.find(key); before != record_tokens_.end()) {
    erase_token(tokens_.find(before->second));
  }
  Token token;
  token.record = record;
  token.record_key = record.get();
  token.rank = rank;
  token.holder = {uid, pid};
  std::string text = add_token(std::move(token));
  record_tokens_[key] = text;
  return {std::move(text), record->size_bytes()};
}

std::string BufferTable::add_token(Token token) {
  std::string text = random_hex(kTokenBytes);
  tokens_[text] = std::move(token);
  return text;
}

void BufferTable::erase_token(Tokens::iterator it) {
  const Token& token = it->second;
  if (token.buffer == 0) {
    record_tokens_.erase({token.record_key, token.rank});
  } else {
    waiting_tokens_.take(token.holder);
    if (const auto buffer = buffers_.find(token.buffer); buffer != buffers_.end()) {
      buffer->second.token.clear();
    }
  }
  tokens_.erase(it);
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
  const Token owned = found->second;
  erase_token(found);
  if (const std::shared_ptr<const StepRecord> record = owned.record.lock()) {
    return taken_or_exhausted({record->descriptor(), record->size_bytes()});
  }
  const auto buffer = buffers_.find(owned.buffer);
  if (buffer == buffers_.end()) {
    return refused;
  }
  if (!buffer->second.fd.valid()) {
    if (Result<void> taken = take_in(buffer, std::move(given)); !taken) {
      erase(buffer);
      return taken.error();
    }
    return TakenFd{UniqueFd{}, buffer->second.size_bytes};
  }
  return taken_or_exhausted({duplicate(buffer->second.fd), buffer->second.size_bytes});
}

Result<void> BufferTable::take_in(Buffers::iterator it, UniqueFd given) {
  if (!given.valid()) {
    return invalid_params("fd", "no descriptor came with the token", "send the arena's descriptor along with it");
  }
  const std::uint64_t size_bytes = it->second.size_bytes;
  if (Result<void> checked = device::check_arena(given.get(), size_bytes); !checked) {
    return checked;
  }
  const auto before = of_memory_.find(device::memory_of(given.get()));
  if (before != of_memory_.end()) {
    const auto other = buffers_.find(before->second);
    if (other->second.session != it->second.session || other->second.map_submitted ||
        !other->second.elsewhere.empty()) {
      return invalid_params("fd", "this memory is in use as another buffer", "every rank hands back its own arena");
    }
    erase(other);  // handed back twice, because the first answer was lost: closed without freeing its pages
  } else if (Result<void> fits = check_memory(size_bytes, device::populated_bytes(given.get())); !fits) {
    return fits;
  }
  fill(it, std::move(given));
  return {};
}

Result<void> BufferTable::release(SessionId session, std::uint64_t buffer) {
  const auto it = buffers_.find(buffer);
  if (it == buffers_.end() || it->second.session != session || it->second.released) {
    return unknown_buffer(buffer);
  }
  set_released(it->second);
  drop_if_unused(it);
  return {};
}

void BufferTable::rename_session(SessionId from, SessionId to) {
  auto found = sessions_.extract(from);
  if (!found) {
    return;
  }
  for (const std::uint64_t buffer : found.mapped().buffers) {
    buffers_.at(buffer).session = to;
  }
  found.key() = to;
  GRADSYNC_ASSERT(sessions_.insert(std::move(found)).inserted, "a new session has no buffers");
}

Result<std::uint64_t> BufferTable::size_of(SessionId session, std::uint64_t buffer) const {
  const auto it = buffers_.find(buffer);
  if (it == buffers_.end() || it->second.session != session) {
    return unknown_buffer(buffer);
  }
  if (it->second.exported && it->second.exported->lost) {
    return lost_buffer(buffer, lanes_.gpu_of(it->second.lane));
  }
  if (!it->second.usable()) {
    return unknown_buffer(buffer);
  }
  return it->second.size_bytes;
}

SessionId BufferTable::session_of(std::uint64_t buffer) const {
  const auto it = buffers_.find(buffer);
  return it == buffers_.end() ? 0 : it->second.session;
}

device::LaneId BufferTable::lane_of(std::uint64_t buffer) const {
  const auto it = buffers_.find(buffer);
  return it == buffers_.end() ? device::kHostLane : it->second.lane;
}

void BufferTable::use(std::uint64_t buffer) { ++buffers_.at(buffer).users; }

void BufferTable::map_on(std::uint64_t buffer, device::LaneId lane) {
  Buffer& entry = buffers_.at(buffer);
  if (entry.exported || lane != entry.lane) {
    map_elsewhere(buffer, entry, lane);
  } else if (!entry.map_submitted) {
    entry.map_submitted = true;
    lanes_[entry.lane].submit(device::MapBuffer{buffer, duplicate(entry.fd), entry.size_bytes});
  }
}

std::uint64_t BufferTable::bytes_of(SessionId session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? 0 : found->second.bytes;
}

}  // namespace gradsync::engine
