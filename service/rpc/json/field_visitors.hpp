#pragma once
// The visitors for `Fields<T>::visit`: one each for reading, for the names of the fields, for writing and for the
// schema. Used by codec.hpp, which says how a struct is described.

#include "rpc/json/field_reader.hpp"
#include "rpc/json/json_writer.hpp"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
    for (std::size_t i = 0; i < count;
         ++i) {  // clients mostly send fields in our order: look behind the last one first
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

}  // namespace gradsync::rpc
