#pragma once
// The method table: one line per method (methods.cpp), from which come dispatch, checks, metrics and `rpc.discover`.
// To add a method: its structs in wire_*.hpp, its handler in handlers.hpp, its line in the table, a transcript.

#include "rpc/json/codec.hpp"
#include "rpc/reply.hpp"

#include <memory>
#include <span>
#include <string_view>

namespace gradsync::rpc {

struct Core;
struct Caller;

enum class Needs : std::uint8_t {
  Nothing,     ///< session-less: also over POST and TCP
  Local,       ///< a WebSocket on the unix socket
  Initialize,  ///< also session.initialize
  Attach,      ///< also job.attach
};

enum class Form : std::uint8_t {
  Request,
  Notification,
  Read,  ///< a request that changes nothing: not called without an id, because its answer is all that it is for
};

/// Whether the log says who called it, and how that ended.
enum class Audit : std::uint8_t {
  No,   ///< it changes nothing, or is part of every step
  Yes,  ///< it changes a job's ranks or policies, or the daemon
};

struct Method {
  const char* name;
  const char* summary;
  Needs needs;
  Form form;  ///< how clients are expected to send it; both are accepted
  Audit audit;
  void (*call)(
      Core& core,
      Caller& caller,
      FieldReader& reader,
      const std::optional<Value>& params,
      std::shared_ptr<Completion> completion
  );
  Json (*params_schema)(SchemaBuilder& builder);
  Json (*result_schema)(SchemaBuilder& builder);
};

[[nodiscard]] std::span<const Method> methods();

/// Index of the method, or `methods().size()`.
[[nodiscard]] std::size_t find_method(std::string_view name);

template <typename P>
concept CheckedBeforeReading = requires(Value value) { P::check_before_reading(value); };

template <typename P>
[[nodiscard]] Result<P> read_method_params(FieldReader& reader, const std::optional<Value>& value) {
  P params;
  if (value && value->is(TokenType::Array)) {
    return invalid_params("", "params is a list; expected an object", "name the params");
  }
  // Absent params are {}: a tape of an empty object gives the same messages for missing fields.
  static const Tape kEmpty = *read_json("{}", 1);
  const Value object = value ? *value : kEmpty.root();
  if constexpr (CheckedBeforeReading<P>) {
    if (auto checked = P::check_before_reading(object); !checked) {
      return checked.error();
    }
  }
  if (auto read = read_params(reader, object, params); !read) {
    return read.error();
  }
  return params;
}

/// A handler: takes its params by value and answers now or later.
template <typename P, typename R>
using Handler = void (*)(Core&, Caller&, P, Answer<R>);

/// Hears of params that were refused before they came to the handler.
using RefusalHandler = void (*)(Core&, Caller&, const Error&);

inline void no_refusal_handler(Core&, Caller&, const Error&) {}

/// Binds a handler to a line of the table.
template <typename P, typename R, Handler<P, R> handler, RefusalHandler on_refusal = no_refusal_handler>
[[nodiscard]] constexpr Method method(
    const char* name, Needs needs, Form form, const char* summary, Audit audit = Audit::No
) {
  return Method{
      name,
      summary,
      needs,
      form,
      audit,
      [](Core& core,
         Caller& caller,
         FieldReader& reader,
         const std::optional<Value>& value,
         std::shared_ptr<Completion> completion) {
        Result<P> params = read_method_params<P>(reader, value);
        if (!params) {
          on_refusal(core, caller, params.error());
          completion->fail(params.error());
          return;
        }
        handler(core, caller, std::move(*params), Answer<R>(std::move(completion)));
      },
      [](SchemaBuilder& builder) { return Codec<P>::schema(builder, {}); },
      [](SchemaBuilder& builder) { return Codec<R>::schema(builder, {}); },
  };
}

}  // namespace gradsync::rpc
