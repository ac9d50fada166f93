#include "fuzz/net/websocket_model.hpp"

#include "fuzz/fuzz.hpp"

#include <algorithm>
#include <optional>

namespace gradsync::fuzz {

namespace {

enum Opcode : unsigned { kContinuation = 0, kText = 1, kBinary = 2, kClose = 8, kPing = 9, kPong = 10 };

constexpr unsigned kProtocolError = 1002;
constexpr unsigned kUnknownData = 1003;
constexpr unsigned kBadPayload = 1007;
constexpr unsigned kTooBig = 1009;

struct Header {
  unsigned opcode = 0;
  unsigned reserved = 0;
  bool fin = false;
  bool masked = false;
  bool canonical = true;  ///< the length in as few bytes as it needs
  std::uint64_t length = 0;
  std::uint8_t key[4] = {};
  std::size_t size = 0;  ///< of the header
};

unsigned byte_at(std::string_view data, std::size_t at) { return static_cast<std::uint8_t>(data[at]); }

/// nullopt: not all of it is there.
std::optional<Header> header_of(std::string_view data) {
  if (data.size() < 2) {
    return std::nullopt;
  }
  Header header;
  header.opcode = byte_at(data, 0) & 15;
  header.reserved = byte_at(data, 0) >> 4 & 7;
  header.fin = byte_at(data, 0) >= 128;
  header.masked = byte_at(data, 1) >= 128;
  header.length = byte_at(data, 1) & 127;
  const std::size_t wide = header.length == 126 ? 2 : header.length == 127 ? 8 : 0;
  header.size = 2 + wide + (header.masked ? 4 : 0);
  if (data.size() < header.size) {
    return std::nullopt;
  }
  if (wide > 0) {
    header.length = 0;
    for (std::size_t i = 0; i < wide; ++i) {
      header.length = header.length << 8 | byte_at(data, 2 + i);
    }
    header.canonical = header.length >= (wide == 2 ? 126u : 65536u);
  }
  for (std::size_t i = 0; header.masked && i < 4; ++i) {
    header.key[i] = static_cast<std::uint8_t>(byte_at(data, 2 + wide + i));
  }
  return header;
}

bool is_control(const Header& header) { return header.opcode >= 8; }

bool is_known(unsigned opcode) { return opcode <= kBinary || (opcode >= kClose && opcode <= kPong); }

bool is_close_code(unsigned code) {
  return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1013) || code >= 3000;
}

/// Reads messages out of frames; `heard` says how far it came.
class Reader {
 public:
  Reader(Heard& heard, std::size_t message_bytes) : heard_(heard), message_bytes_(message_bytes) {}

  /// False: nothing after this frame counts. `payload` is what is there of it.
  bool frame(const Header& header, std::string_view payload) {
    const bool begins = header.opcode == kText || header.opcode == kBinary;
    const bool wrong = header.reserved != 0 || !header.masked || !is_known(header.opcode) || (begins && in_message_) ||
                       (header.opcode == kContinuation && !in_message_) ||
                       (is_control(header) && (!header.fin || header.length > 125)) || !header.canonical;
    const bool whole = payload.size() == header.length;
    if (wrong) {
      return ends({kProtocolError});
    }
    std::string plain(payload);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      plain[i] = static_cast<char>(static_cast<std::uint8_t>(plain[i]) ^ header.key[i % 4]);
    }
    if (is_control(header)) {
      return whole ? control(header.opcode, plain) : false;
    }
    if (header.opcode == kContinuation && header.length > ~message_.size()) {
      return ends({kTooBig});  // the two lengths have no sum
    }
    if (begins) {
      in_message_ = true;
      binary_ = header.opcode == kBinary;
      message_.clear();
    }
    message_ += plain;
    return data(whole && header.fin) && whole;
  }

  /// A message that has not ended cannot become text: the server may say so at any time.
  [[nodiscard]] bool doubtful() const { return doubtful_; }

 private:
  bool ends(std::set<unsigned> codes) {
    heard_.codes = std::move(codes);
    if (doubtful_) {
      heard_.codes.insert(kBadPayload);
    }
    heard_.ends = true;
    heard_.alive = false;
    return false;
  }

  bool control(unsigned opcode, const std::string& payload) {
    if (opcode == kPing) {
      heard_.pings.push_back(payload);
    }
    if (opcode != kClose) {
      return true;
    }
    if (payload.empty()) {
      return ends({0, 1000});
    }
    const unsigned code = payload.size() < 2 ? 0 : byte_at(payload, 0) << 8 | byte_at(payload, 1);
    const bool good = is_close_code(code) && is_utf8(std::string_view(payload).substr(2));
    return ends(good ? std::set{code} : std::set{kProtocolError, kBadPayload});
  }

  bool data(bool done) {
    if (binary_ && (done || !message_.empty())) {
      return ends({kUnknownData});
    }
    if (message_.size() > message_bytes_) {
      return ends({kTooBig, kBadPayload});
    }
    if (!done) {
      doubtful_ = doubtful_ || !may_become_utf8(message_);
      return true;
    }
    in_message_ = false;
    if (!is_utf8(message_)) {
      return ends({kBadPayload});
    }
    heard_.texts.push_back(std::move(message_));
    message_.clear();
    return true;
  }

  Heard& heard_;
  std::size_t message_bytes_;
  bool in_message_ = false;
  bool binary_ = false;
  std::string message_;
  bool doubtful_ = false;
};

}  // namespace

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const unsigned first = byte_at(text, i);
    const std::size_t more = first < 0x80 ? 0 : first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || text.size() - i <= more) {
      return false;
    }
    unsigned point = more == 0 ? first : first & (0x3fu >> more);
    for (std::size_t k = 1; k <= more; ++k) {
      const unsigned next = byte_at(text, i + k);
      if (next >> 6 != 2) {
        return false;
      }
      point = point << 6 | (next & 0x3f);
    }
    const bool overlong = (more == 2 && point < 0x800) || (more == 3 && point < 0x10000);
    if (overlong || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) {
      return false;
    }
    i += more + 1;
  }
  return true;
}

bool may_become_utf8(const std::string& text) {
  bool may = is_utf8(text);
  for (const char second : {'\x80', '\x90', '\xa0'}) {
    for (std::size_t more = 0; more < 3; ++more) {
      may = may || is_utf8(text + second + std::string(more, '\x80')) || is_utf8(text + std::string(more + 1, '\x80'));
    }
  }
  return may;
}

std::string client_frame(unsigned opcode, bool fin, std::string_view payload) {
  const std::size_t length = payload.size();
  std::string frame(1, static_cast<char>((fin ? 0x80u : 0u) | (opcode & 15)));
  const std::size_t wide = length < 126 ? 0 : length < 65536 ? 2 : 8;
  frame += static_cast<char>(0x80u | (wide == 0 ? length : wide == 2 ? 126 : 127));
  for (std::size_t i = wide; i-- > 0;) {
    frame += static_cast<char>(length >> (8 * i));
  }
  const std::uint8_t key[4] = {
      static_cast<std::uint8_t>(length),
      static_cast<std::uint8_t>(length * 7),
      static_cast<std::uint8_t>(length * 31),
      static_cast<std::uint8_t>(length * 101)};
  frame.append(reinterpret_cast<const char*>(key), 4);
  for (std::size_t i = 0; i < length; ++i) {
    frame += static_cast<char>(static_cast<std::uint8_t>(payload[i]) ^ key[i % 4]);
  }
  return frame;
}

Heard heard_from_client(std::string_view stream, std::size_t message_bytes) {
  Heard heard;
  Reader reader(heard, message_bytes);
  while (const std::optional<Header> header = header_of(stream)) {
    const std::string_view rest = stream.substr(header->size);
    const std::size_t there = static_cast<std::size_t>(std::min<std::uint64_t>(header->length, rest.size()));
    if (!reader.frame(*header, rest.substr(0, there))) {
      break;
    }
    stream = rest.substr(there);
  }
  if (!heard.ends && reader.doubtful()) {
    heard.codes = {0, kBadPayload};
    heard.alive = false;
  }
  return heard;
}

Said said_by_server(std::string_view stream) {
  Said said;
  while (!stream.empty()) {
    REQUIRE(!said.closed);
    const std::optional<Header> header = header_of(stream);
    if (!header) {
      return said;  // broken off with the connection
    }
    REQUIRE(header->fin && header->reserved == 0 && !header->masked && header->canonical);
    REQUIRE(header->opcode == kText || (is_control(*header) && is_known(header->opcode) && header->length <= 125));
    const std::string_view rest = stream.substr(header->size);
    if (rest.size() < header->length) {
      return said;
    }
    const std::string payload(rest.substr(0, header->length));
    stream = rest.substr(header->length);
    if (header->opcode == kText) {
      REQUIRE(is_utf8(payload));
      said.texts.push_back(payload);
    } else if (header->opcode == kPong) {
      said.pongs.push_back(payload);
    } else if (header->opcode == kClose) {
      REQUIRE(payload.size() != 1);
      said.closed = true;
      said.code = payload.empty() ? 0 : byte_at(payload, 0) << 8 | byte_at(payload, 1);
      REQUIRE(payload.empty() || is_close_code(said.code));
      said.reason = payload.empty() ? "" : payload.substr(2);
      REQUIRE(is_utf8(said.reason));
    }
  }
  return said;
}

}  // namespace gradsync::fuzz
