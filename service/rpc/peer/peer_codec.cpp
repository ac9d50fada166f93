#include "rpc/peer/peer_codec.hpp"

#include "base/text/text.hpp"
#include "rpc/envelope.hpp"
#include "rpc/json/plain_text.hpp"
#include "rpc/peer/peer_checks.hpp"
#include "rpc/peer/wire_peer_declaration.hpp"
#include "rpc/peer/wire_peer_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace gradsync::rpc {

namespace {

constexpr std::size_t kPeerDepth = 32;
constexpr std::size_t kLongestMethod = 64;
/// Every text that is written begins with this, and then has the method.
constexpr std::string_view kOpening = R"({"jsonrpc":"2.0","method":")";

template <typename Direction>
struct PeerKind {
  std::string_view method;
  std::size_t most_bytes = 0;
  Result<Direction> (*read)(FieldReader& reader, Value params) = nullptr;
};

/// What a hello of another peer protocol says that this one knows: the rest of it may have changed.
template <typename Message>
std::optional<Message> read_other_protocol(Value) {
  return std::nullopt;
}

template <>
std::optional<engine::PeerHello> read_other_protocol<engine::PeerHello>(Value params) {
  engine::PeerHello hello;
  const auto read = [&](std::string_view field, auto& out, Bounds bounds) {
    FieldReader reader;
    const std::optional<Value> value = params.member(field);
    return value && Codec<std::remove_reference_t<decltype(out)>>::read(reader, *value, out, bounds);
  };
  if (!read("peer_protocol", hello.peer_protocol, kPositive) ||
      hello.peer_protocol == engine::PeerHello{}.peer_protocol) {
    return std::nullopt;
  }
  read("version", hello.version, kHostText);
  read("node", hello.node, kHostText);
  return hello;
}

template <typename Direction, typename Message>
Result<Direction> read_as(FieldReader& reader, Value params) {
  if (std::optional<Message> other = read_other_protocol<Message>(params)) {
    return Direction(std::move(*other));
  }
  Message message;
  if (const Result<void> read = read_params(reader, params, message); !read) {
    return read.error();
  }
  if (!is_consistent(reader, message)) {
    return reader.error();
  }
  return Direction(std::move(message));
}

template <typename Direction>
struct PeerKinds;

template <typename... Messages>
struct PeerKinds<std::variant<Messages...>> {
  using Direction = std::variant<Messages...>;
  static constexpr std::array<PeerKind<Direction>, sizeof...(Messages)> kAll{
      {{Fields<Messages>::kName, Fields<Messages>::kMostBytes, &read_as<Direction, Messages>}...}};
};

template <typename Direction>
const PeerKind<Direction>* find_kind(std::string_view method) {
  for (const PeerKind<Direction>& kind : PeerKinds<Direction>::kAll) {
    if (kind.method == method) {
      return &kind;
    }
  }
  return nullptr;
}

template <typename Direction>
using OtherWay =
    std::conditional_t<std::is_same_v<Direction, engine::ToMember>, engine::ToCoordinator, engine::ToMember>;

template <typename Direction>
Error unknown_kind(std::string_view method) {
  std::vector<std::string> names;
  for (const PeerKind<Direction>& kind : PeerKinds<Direction>::kAll) {
    names.emplace_back(kind.method);
  }
  const std::string nearest = method.size() > kLongestMethod ? std::string{} : nearest_name(method, names);
  return make_error(
      ErrorCode::MethodNotFound,
      fmt::format(
          "method is {}{}; expected one of {}",
          quote_escaped(method),
          find_kind<OtherWay<Direction>>(method) == nullptr ? "" : ", which goes the other way",
          enumerate_names(names)
      ),
      nearest.empty() ? "" : fmt::format("did you mean \"{}\"?", nearest)
  );
}

Error too_long_text(std::string_view what, std::size_t bytes, std::size_t most, std::string_view hint) {
  return make_error(
      ErrorCode::LimitExceeded,
      fmt::format("{} is a text of {} bytes; expected at most {}", what, bytes, most),
      std::string(hint)
  );
}

Error no_notification(std::string_view method, std::string_view problem) {
  return make_error(
      ErrorCode::InvalidRequest, fmt::format("{}: {}", method, problem), "daemons send each other notifications alone"
  );
}

/// The method of a text that begins as written ones do; else "".
std::string_view opening_method(std::string_view text) {
  const std::string_view rest =
      text.starts_with(kOpening) ? text.substr(kOpening.size(), kLongestMethod) : std::string_view{};
  const std::size_t end = rest.find('"');
  return end == std::string_view::npos ? std::string_view{} : rest.substr(0, end);
}

/// A text may be long where its kind may. This is known before it is parsed, so that parsing takes no more memory than
/// the kind is worth.
template <typename Direction>
std::optional<Error> refuse_length(std::string_view text) {
  constexpr std::string_view kHint = "the kinds that may be longer are in docs/peer-protocol.md";
  if (text.size() <= kShortTextBytes) {
    return std::nullopt;
  }
  const PeerKind<Direction>* kind = find_kind<Direction>(opening_method(text));
  if (kind == nullptr) {
    return too_long_text("a message that does not begin as a long one does", text.size(), kShortTextBytes, kHint);
  }
  if (text.size() > kind->most_bytes) {
    return too_long_text(kind->method, text.size(), kind->most_bytes, kHint);
  }
  return std::nullopt;
}

template <typename Direction>
Result<Direction> read_tape(FieldReader& fields, Value root) {
  const Request request = read_request(root);
  if (request.error) {
    return *request.error;
  }
  const PeerKind<Direction>* kind = find_kind<Direction>(request.method);
  if (kind == nullptr) {
    return unknown_kind<Direction>(request.method);
  }
  if (request.id) {
    return no_notification(kind->method, fmt::format("id is {}; expected none", *request.id));
  }
  if (!request.params) {
    return no_notification(kind->method, "params is missing; expected an object");
  }
  Result<Direction> message = kind->read(fields, *request.params);
  if (message) {
    return message;
  }
  Error error = message.error();
  error.message = fmt::format("{}: {}", kind->method, error.message);
  return error;
}

template <typename Direction>
Result<Direction> read_peer(TapeReader& texts, FieldReader& fields, std::string_view text) {
  if (std::optional<Error> error = refuse_length<Direction>(text)) {
    return std::move(*error);
  }
  const Result<Value> root = texts.read(text);
  Result<Direction> message = root ? read_tape<Direction>(fields, *root) : Result<Direction>(root.error());
  if (message || !message.error().hint.empty()) {
    return message;
  }
  Error error = message.error();
  error.hint = "run the same release of gradsyncd on all nodes: see docs/peer-protocol.md for the message";
  return error;
}

/// The memory of a long text is given back at once: its link may be silent for a while.
template <typename Direction>
Result<Direction> read_text(TapeReader& texts, FieldReader& fields, std::string_view text) {
  if (text.size() <= kShortTextBytes) {
    return read_peer<Direction>(texts, fields, text);
  }
  TapeReader long_texts(kPeerDepth);
  FieldReader long_fields;
  return read_peer<Direction>(long_texts, long_fields, text);
}

template <typename Message>
Result<std::string> write_message(const Message& message) {
  JsonWriter writer;
  writer.begin_object();
  writer.key("jsonrpc");
  writer.value(std::string_view("2.0"));
  writer.key("method");
  writer.value(std::string_view(Fields<Message>::kName));
  writer.key("params");
  Codec<Message>::write(writer, message);
  writer.end_object();
  std::string text = writer.take();
  if (text.size() > Fields<Message>::kMostBytes) {
    return too_long_text(
        Fields<Message>::kName,
        text.size(),
        Fields<Message>::kMostBytes,
        "declare fewer layers, or leave the fingerprints of weights out"
    );
  }
  return text;
}

template <typename Direction>
Result<std::string> write_text(const Direction& message) {
  return std::visit([](const auto& value) { return write_message(value); }, message);
}

}  // namespace

Result<std::string> encode_peer(const engine::ToCoordinator& message) { return write_text(message); }

Result<std::string> encode_peer(const engine::ToMember& message) { return write_text(message); }

PeerReader::PeerReader() : texts_(kPeerDepth) {}

Result<engine::ToCoordinator> PeerReader::to_coordinator(std::string_view text) {
  return read_text<engine::ToCoordinator>(texts_, fields_, text);
}

Result<engine::ToMember> PeerReader::to_member(std::string_view text) {
  return read_text<engine::ToMember>(texts_, fields_, text);
}

}  // namespace gradsync::rpc
