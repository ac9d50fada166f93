#pragma once
// An error between daemons: all its fields, so that the daemon at the other end answers its ranks with the same one.
// Number, retryability and default hint of the code are not sent: both ends have them. An error whose texts fit comes
// back exactly as it was sent; a text that does not fit is cut.

#include "base/error.hpp"
#include "rpc/peer/peer_fields.hpp"

#include <cstddef>

namespace gradsync::rpc {

/// With these no error makes a message longer than 64 KiB, whatever is escaped in it.
inline constexpr std::size_t kErrorMessageBytes = 8192;
inline constexpr std::size_t kErrorHintBytes = 1024;

template <>
struct Codec<ErrorCode> {
  static bool read(FieldReader& reader, Value value, ErrorCode& out, Bounds);
  static void write(JsonWriter& writer, const ErrorCode& code);
};

template <>
struct Fields<Error> {
  static constexpr const char* kName = "PeerError";

  static void visit(auto& v, auto& s) {
    v.required("kind", s.code, "as in docs/errors.md");
    required_as<TidyText<kErrorMessageBytes>>(v, "message", s.message, "what was found, and what was expected");
    optional_as<TidyText<kErrorHintBytes>>(v, "hint", s.hint, "what to try; absent: that of the kind");
    optional_as<TidyText<kErrorHintBytes>>(v, "path", s.path, "wire name of the field at fault");
    optional_as<TidyText<256>>(v, "job", s.job, "its name");
    optional_as<TidyText<plan::kMaxNameBytes>>(v, "tensor", s.tensor, "name of the tensor at fault");
    optional_as<TidyText<64>>(v, "node", s.node, "host name of the node at fault or missing");
    optional_as<RankList>(v, "ranks", s.ranks, "at fault or missing");
    optional_as<NamedTensors>(v, "tensors", s.tensors, "missing or at fault");
    v.optional("rank", s.rank, "at fault", kRankNumber);
    v.optional("step", s.step, "the trainer's label");
    v.optional("bucket", s.bucket, "index in the plan", kNatural);
    v.optional("epoch", s.epoch, "to use from now on");
    v.optional("attempt", s.attempt, "to use from now on");
    v.optional("waited_s", s.waited_s, "how long the call waited");
  }
};

}  // namespace gradsync::rpc
