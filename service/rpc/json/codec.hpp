#pragma once
// One description per wire struct gives three things: strict reading, writing, and the JSON schema of `rpc.discover`.
//
// A struct is described by `Fields<T>`: a `kName` and `visit(visitor, object)`, which calls `visitor.required(name,
// member, what, bounds)` or `visitor.optional(…)` once per field. An enum is described by `EnumNames<T>::kEntries`.
// `Codec<T>` holds the rules per type; a type with rules of its own specialises it.

#include "base/text/shared_text.hpp"
#include "rpc/json/field_visitors.hpp"

#include <array>
#include <concepts>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace gradsync::rpc {

template <typename T>
concept Described = requires { Fields<T>::kName; };

template <typename T>
concept NamedEnum = std::is_enum_v<T> && requires { EnumNames<T>::kEntries; };

// ---- structs

template <Described T>
struct Codec<T> {
  static bool read(FieldReader& reader, Value value, T& object, Bounds) {
    if (!value.is(TokenType::Object)) {
      return reader.wrong_type(value, "an object");
    }
    const std::size_t first = reader.members.size();
    value.each_member([&](std::string_view key, Value member) {
      reader.members.push_back({key, member});
      return true;
    });
    ReadVisitor visitor(reader, first);
    Fields<T>::visit(visitor, object);
    const bool ok = visitor.finish<T>();
    reader.members.erase(reader.members.begin() + static_cast<std::ptrdiff_t>(first), reader.members.end());
    return ok;
  }

  static void write(JsonWriter& writer, const T& object) {
    writer.begin_object();
    WriteVisitor visitor(writer);
    Fields<T>::visit(visitor, object);
    writer.end_object();
  }

  static Json schema(SchemaBuilder& builder, Bounds) {
    const std::string name = Fields<T>::kName;
    if (!builder.components.contains(name)) {
      builder.components[name] = nullptr;  // holds the place in order
      SchemaVisitor visitor(builder);
      const T object{};
      Fields<T>::visit(visitor, object);
      Json schema{{"type", "object"}, {"additionalProperties", false}};
      if (!visitor.required_names().empty()) {
        schema["required"] = visitor.required_names();
      }
      schema["properties"] = visitor.properties();
      builder.components[name] = std::move(schema);
    }
    return Json{{"$ref", "#/components/schemas/" + name}};
  }
};

// ---- enums

template <NamedEnum T>
struct Codec<T> {
  static bool read(FieldReader& reader, Value value, T& out, Bounds) {
    std::string expected = "one of";
    for (const auto& [name, entry] : EnumNames<T>::kEntries) {
      if (value.is(TokenType::String) && value.text() == name) {
        out = entry;
        return true;
      }
      expected += (expected == "one of" ? " \"" : ", \"") + std::string(name) + "\"";
    }
    return reader.wrong_type(value, expected);
  }

  static void write(JsonWriter& writer, const T& value) {
    for (const auto& [name, entry] : EnumNames<T>::kEntries) {
      if (entry == value) {
        writer.value(std::string_view(name));
        return;
      }
    }
    writer.null();
  }

  static Json schema(SchemaBuilder&, Bounds) {
    Json names = Json::array();
    for (const auto& [name, entry] : EnumNames<T>::kEntries) {
      names.push_back(name);
    }
    return Json{{"enum", names}};
  }
};

// ---- scalars (codec.cpp)

#define GRADSYNC_SCALAR_CODEC(Type)                                               \
  template <>                                                                     \
  struct Codec<Type> {                                                            \
    static bool read(FieldReader& reader, Value value, Type& out, Bounds bounds); \
    static void write(JsonWriter& writer, const Type& value);                     \
    static Json schema(SchemaBuilder&, Bounds bounds);                            \
  }
GRADSYNC_SCALAR_CODEC(bool);
GRADSYNC_SCALAR_CODEC(std::int64_t);
GRADSYNC_SCALAR_CODEC(std::uint64_t);
GRADSYNC_SCALAR_CODEC(std::uint32_t);
GRADSYNC_SCALAR_CODEC(double);
GRADSYNC_SCALAR_CODEC(std::string);
GRADSYNC_SCALAR_CODEC(SharedText);
#undef GRADSYNC_SCALAR_CODEC

// ---- containers

template <typename T>
struct Codec<std::optional<T>> {
  static bool read(FieldReader& reader, Value value, std::optional<T>& out, Bounds bounds) {
    return Codec<T>::read(reader, value, out.emplace(), bounds);
  }

  static void write(JsonWriter& writer, const std::optional<T>& value) {
    if (value) {
      Codec<T>::write(writer, *value);
    } else {
      writer.null();
    }
  }

  static Json schema(SchemaBuilder& builder, Bounds bounds) { return Codec<T>::schema(builder, bounds); }
};

/// Never null.
template <typename T>
struct Codec<std::shared_ptr<const T>> {
  static bool read(FieldReader& reader, Value value, std::shared_ptr<const T>& out, Bounds bounds) {
    const auto made = std::make_shared<T>();
    out = made;
    return Codec<T>::read(reader, value, *made, bounds);
  }

  static void write(JsonWriter& writer, const std::shared_ptr<const T>& value) { Codec<T>::write(writer, *value); }

  static Json schema(SchemaBuilder& builder, Bounds bounds) { return Codec<T>::schema(builder, bounds); }
};

template <typename T>
struct Codec<Settable<T>> {
  static bool read(FieldReader& reader, Value value, Settable<T>& out, Bounds bounds) {
    out.given = true;
    out.value.reset();
    return value.is(TokenType::Null) || Codec<T>::read(reader, value, out.value.emplace(), bounds);
  }

  static void write(JsonWriter& writer, const Settable<T>& value) {
    Codec<std::optional<T>>::write(writer, value.value);
  }

  static Json schema(SchemaBuilder& builder, Bounds bounds) {
    return Json{{"anyOf", Json::array({Codec<T>::schema(builder, bounds), Json{{"type", "null"}}})}};
  }
};

/// `bounds` count the items; items that are numbers are natural.
template <typename T>
struct Codec<std::vector<T>> {
  static constexpr Bounds kItem = std::is_arithmetic_v<T> ? kNatural : Bounds{};

  static bool read(FieldReader& reader, Value value, std::vector<T>& out, Bounds bounds) {
    if (!value.is(TokenType::Array)) {
      return reader.wrong_type(value, "a list");
    }
    out.clear();
    return reader.has_count(value, bounds) && value.each_item([&](Value item) {
      const FieldReader::Step step(reader, out.size());
      return Codec<T>::read(reader, item, out.emplace_back(), kItem);
    });
  }

  static void write(JsonWriter& writer, const std::vector<T>& values) {
    writer.begin_array();
    for (const T& value : values) {
      Codec<T>::write(writer, value);
    }
    writer.end_array();
  }

  static Json schema(SchemaBuilder& builder, Bounds bounds) {
    Json schema{{"type", "array"}, {"items", Codec<T>::schema(builder, kItem)}};
    if (bounds.least > 0) {
      schema["minItems"] = bounds.least;
    }
    if (bounds.most != Bounds{}.most) {
      schema["maxItems"] = bounds.most;
    }
    return schema;
  }
};

// ---- whole messages

/// Reads params; `out` holds the defaults. Errors: InvalidParams.
template <typename T>
[[nodiscard]] Result<void> read_params(FieldReader& reader, Value value, T& out) {
  reader.begin();
  if (!Codec<T>::read(reader, value, out, {})) {
    return reader.error();
  }
  return {};
}

template <typename T>
[[nodiscard]] Result<void> read_params(Value value, T& out) {
  FieldReader reader;
  return read_params(reader, value, out);
}

template <typename T>
[[nodiscard]] std::string to_json(const T& object, std::string memory = {}) {
  JsonWriter writer(std::move(memory));
  Codec<T>::write(writer, object);
  return writer.take();
}

}  // namespace gradsync::rpc
