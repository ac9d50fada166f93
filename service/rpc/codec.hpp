#pragma once
// One description per wire struct gives three things: strict reading, writing, and the JSON schema of `rpc.discover`.
//
// A struct is described by `Fields<T>`: a `kName` and `visit(visitor, object)`, which calls `visitor.required(name, member,
// what, bounds)` or `visitor.optional(…)` once per field. An enum is described by `EnumNames<T>::kEntries`. `Codec<T>` holds the
// rules per type; a type with rules of its own specialises it.

#include <array>
#include <concepts>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "rpc/field_reader.hpp"
#include "rpc/json_writer.hpp"

namespace gradsync::rpc {

template <typename T>
struct Fields;

template <typename T>
struct EnumNames;

template <typename T>
struct Codec;

/// Tells an absent field from one that is null.
template <typename T>
struct Settable {
  bool given = false;
  std::optional<T> value;
};

using Json = nlohmann::ordered_json;

/// Schemas of the structs met so far, by name.
struct SchemaBuilder {
  Json components = Json::object();
};

template <typename T>
concept Described = requires { Fields<T>::kName; };

template <typename T>
concept NamedEnum = std::is_enum_v<T> && requires { EnumNames<T>::kEntries; };

// ---- structs

class ReadVisitor {
 public:
  ReadVisitor(FieldReader& reader, std::size_t first) : reader_(reader), first_(first), end_(reader.members.size()) {}

  template <typename M>
  void required(std::string_view name, M& member, const char*, Bounds bounds = {}) {
    if (ok_ && !read(name, member, bounds) && ok_ && missing_.empty()) {
      missing_ = name;
    }
  }

  template <typename M>
  void optional(std::string_view name, M& member, const char*, Bounds bounds = {}) {
    if (ok_) {
      read(name, member, bounds);
    }
  }

  template <typename T>
  bool finish();

 private:
  /// True when the field is there.
  template <typename M>
  bool read(std::string_view name, M& member, Bounds bounds) {
    const std::size_t count = end_ - first_;
    for (std::size_t i = 0; i < count; ++i) {  // clients mostly send fields in our order: look behind the last one first
      const std::size_t at = first_ + (next_ + i) % count;
      if (reader_.members[at].key == name) {
        next_ = at - first_ + 1;
        reader_.members[at].used = true;
        const FieldReader::Step step(reader_, name);
        ok_ = Codec<M>::read(reader_, reader_.members[at].value, member, bounds);
        return true;
      }
    }
    return false;
  }

  FieldReader& reader_;
  std::size_t first_;
  std::size_t end_;
  std::size_t next_ = 0;
  bool ok_ = true;
  std::string_view missing_;
};

struct NameVisitor {
  std::vector<std::string> names;

  template <typename M>
  void required(std::string_view name, M&, const char*, Bounds = {}) {
    names.emplace_back(name);
  }

  template <typename M>
  void optional(std::string_view name, M&, const char*, Bounds = {}) {
    names.emplace_back(name);
  }
};

template <typename T>
bool ReadVisitor::finish() {
  if (!ok_) {
    return false;
  }
  for (std::size_t at = first_; at < end_; ++at) {
    if (!reader_.members[at].used) {
      NameVisitor known;
      T object{};
      Fields<T>::visit(known, object);
      return reader_.unknown(reader_.members[at].key, known.names);
    }
  }
  return missing_.empty() || reader_.missing(missing_);
}

template <typename T>
struct IsAbsent {
  static bool test(const T&) { return false; }
};

template <typename T>
struct IsAbsent<std::optional<T>> {
  static bool test(const std::optional<T>& value) { return !value; }
};

template <typename T>
struct IsAbsent<Settable<T>> {
  static bool test(const Settable<T>& value) { return !value.given; }
};

class WriteVisitor {
 public:
  explicit WriteVisitor(JsonWriter& writer) : writer_(writer) {}

  template <typename M>
  void required(std::string_view name, const M& member, const char*, Bounds = {}) {
    writer_.key(name);
    Codec<M>::write(writer_, member);
  }

  template <typename M>
  void optional(std::string_view name, const M& member, const char*, Bounds = {}) {
    if (!IsAbsent<M>::test(member)) {
      required(name, member, nullptr);
    }
  }

 private:
  JsonWriter& writer_;
};

class SchemaVisitor {
 public:
  explicit SchemaVisitor(SchemaBuilder& builder) : builder_(builder) {}

  template <typename M>
  void required(std::string_view name, const M&, const char* what, Bounds bounds = {}) {
    add<M>(name, what, bounds);
    required_.push_back(name);
  }

  template <typename M>
  void optional(std::string_view name, const M& member, const char* what, Bounds bounds = {}) {
    add<M>(name, what, bounds);
    if (!IsAbsent<M>::test(member)) {
      JsonWriter writer;
      Codec<M>::write(writer, member);
      properties_[std::string(name)]["default"] = Json::parse(writer.take());
    }
  }

  /// `names_in_order`, with the schema of each and whether it must be there.
  [[nodiscard]] const Json& properties() const { return properties_; }

  [[nodiscard]] const Json& required_names() const { return required_; }

 private:
  template <typename M>
  void add(std::string_view name, const char* what, Bounds bounds) {
    Json schema = Codec<M>::schema(builder_, bounds);
    if (schema.contains("$ref")) {  // siblings of $ref are ignored by draft 7
      schema = Json{{"allOf", Json::array({schema})}};
    }
    schema["description"] = what;
    properties_[std::string(name)] = std::move(schema);
  }

  SchemaBuilder& builder_;
  Json properties_ = Json::object();
  Json required_ = Json::array();
};

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

#define GRADSYNC_SCALAR_CODEC(Type)                                                        \
  template <>                                                                              \
  struct Codec<Type> {                                                                     \
    static bool read(FieldReader& reader, Value value, Type& out, Bounds bounds);          \
    static void write(JsonWriter& writer, const Type& value);                              \
    static Json schema(SchemaBuilder&, Bounds bounds);                                     \
  }
GRADSYNC_SCALAR_CODEC(bool);
GRADSYNC_SCALAR_CODEC(std::int64_t);
GRADSYNC_SCALAR_CODEC(std::uint64_t);
GRADSYNC_SCALAR_CODEC(std::uint32_t);
GRADSYNC_SCALAR_CODEC(double);
GRADSYNC_SCALAR_CODEC(std::string);
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
    const bool ok = value.each_item([&](Value item) {
      const FieldReader::Step step(reader, out.size());
      return Codec<T>::read(reader, item, out.emplace_back(), kItem);
    });
    const auto count = static_cast<std::int64_t>(out.size());
    if (ok && (count < bounds.least || count > bounds.most)) {
      return reader.out_of_range("a list of " + std::to_string(count), " items", bounds);
    }
    return ok;
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
[[nodiscard]] Result<void> read_params(Value value, T& out) {
  FieldReader reader;
  if (!Codec<T>::read(reader, value, out, {})) {
    return reader.error();
  }
  return {};
}

template <typename T>
[[nodiscard]] std::string to_json(const T& object) {
  JsonWriter writer;
  Codec<T>::write(writer, object);
  return writer.take();
}

}  // namespace gradsync::rpc
