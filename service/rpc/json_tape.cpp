#include "rpc/json_tape.hpp"

#include "rpc/plain_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <unordered_set>

namespace gradsync::rpc {

namespace {

using Json = nlohmann::json;

/// Keys of one open object. Few keys are compared one by one, many go to a set: a message of 100,000 keys must not cost
/// the square of that.
struct OpenContainer {
  std::uint32_t index = 0;
  std::vector<TextSlice> keys;
  std::unordered_set<std::string> many_keys;
};

constexpr std::size_t kFewKeys = 24;

/// Memory of a longer message (pages of a declaration) is given back when the next one comes.
constexpr std::size_t kKeptText = 64U << 10;

std::string cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) {
    return std::string(text);
  }
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) {
    --most;
  }
  return std::string(text.substr(0, most)) + "…";
}

Error parse_failure(std::string message, std::string hint = {}) {
  return make_error(ErrorCode::ParseError, std::move(message), std::move(hint));
}

}  // namespace

class TapeBuilder {
 public:
  explicit TapeBuilder(std::size_t depth) : depth_(depth) {}

  [[nodiscard]] Result<void> read(std::string_view text) {
    if (text.size() >= UINT32_MAX) {
      return parse_failure("longer than 4 GiB");
    }
    begin(text.size());
    const bool parsed = Json::sax_parse(text.data(), text.data() + text.size(), this);
    if (failure_) {
      return std::move(*failure_);
    }
    if (!parsed) {
      return parse_failure("not JSON");
    }
    return {};
  }

  Tape& tape() { return tape_; }

  bool null() { return push(TokenType::Null) != nullptr; }

  bool boolean(bool value) {
    push(TokenType::Bool)->boolean = value;
    return true;
  }

  bool number_integer(std::int64_t value) {
    if (value >= 0) {  // "-0"
      return number_unsigned(static_cast<std::uint64_t>(value));
    }
    push(TokenType::Negative)->negative = value;
    return true;
  }

  bool number_unsigned(std::uint64_t value) {
    push(TokenType::Unsigned)->natural = value;
    return true;
  }

  bool number_float(double value, const std::string& text) {
    // The lexer turns an integer that fits no 64-bit type into a double and loses its low digits.
    if (text.find_first_of(".eE") == std::string::npos) {
      return fail(parse_failure(fmt::format("the integer {} does not fit 64 bits", cut(text, 60))));
    }
    if (!std::isfinite(value)) {
      return fail(parse_failure(fmt::format("the number {} does not fit a double", cut(text, 60))));
    }
    push(TokenType::Double)->real = value;
    return true;
  }

  bool string(std::string& value) {
    push(TokenType::String)->text = store(value);
    return true;
  }

  bool binary(Json::binary_t&) { return fail(parse_failure("binary values are not JSON")); }

  bool start_object(std::size_t) { return open(TokenType::Object); }

  bool start_array(std::size_t) { return open(TokenType::Array); }

  bool key(std::string& value) {
    OpenContainer& object = open_[open_count_ - 1];
    if (!is_new_key(object, value)) {
      return fail(parse_failure(
          fmt::format("the key \"{}\" appears twice in one object", cut(value, 60)), "give each field once"
      ));
    }
    const TextSlice slice = store(value);
    if (object.keys.size() < kFewKeys) {
      object.keys.push_back(slice);
    }
    push(TokenType::Key)->text = slice;
    return true;
  }

  bool end_object() { return close(); }

  bool end_array() { return close(); }

  bool parse_error(std::size_t, const std::string&, const Json::exception& problem) {
    if (failure_) {
      return false;
    }
    std::string what = problem.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: …"
    if (const std::size_t end = what.find("] "); end != std::string::npos) {
      what.erase(0, end + 2);
    }
    return fail(parse_failure("not JSON: " + cut(what, 240)));
  }

 private:
  void begin(std::size_t text_size) {
    if (tape_.text_.capacity() > kKeptText) {
      tape_ = {};
      std::string().swap(tape_.text_);  // a moved-to string keeps its memory
      open_.clear();
    }
    tape_.tokens_.clear();
    tape_.text_.clear();
    tape_.tokens_.reserve(text_size / 8 + 8);
    tape_.text_.reserve(text_size / 2 + 8);
    open_count_ = 0;
    failure_.reset();
  }

  Token* push(TokenType type) {
    Token& token = tape_.tokens_.emplace_back();
    token.type = type;
    token.end = static_cast<std::uint32_t>(tape_.tokens_.size());
    return &token;
  }

  TextSlice store(std::string_view text) {
    const TextSlice slice{static_cast<std::uint32_t>(tape_.text_.size()), static_cast<std::uint32_t>(text.size())};
    tape_.text_ += text;
    return slice;
  }

  bool is_new_key(OpenContainer& object, const std::string& key) {
    if (object.keys.size() < kFewKeys) {
      for (const TextSlice& other : object.keys) {
        if (tape_.text(other) == key) {
          return false;
        }
      }
      return true;
    }
    if (object.many_keys.empty()) {
      for (const TextSlice& other : object.keys) {
        object.many_keys.emplace(tape_.text(other));
      }
    }
    return object.many_keys.insert(key).second;
  }

  bool open(TokenType type) {
    if (open_count_ == depth_) {
      return fail(parse_failure(fmt::format("nested deeper than {} levels", depth_)));
    }
    if (open_count_ == open_.size()) {
      open_.emplace_back();
    }
    OpenContainer& container = open_[open_count_++];
    container.index = static_cast<std::uint32_t>(tape_.tokens_.size());
    container.keys.clear();
    if (!container.many_keys.empty()) {  // an empty one would zero all its buckets, for every object
      container.many_keys = {};
    }
    push(type);
    return true;
  }

  bool close() {
    const OpenContainer& container = open_[--open_count_];
    tape_.tokens_[container.index].end = static_cast<std::uint32_t>(tape_.tokens_.size());
    return true;
  }

  bool fail(Error error) {
    failure_ = std::move(error);
    return false;
  }

  std::size_t depth_;
  Tape tape_;
  std::vector<OpenContainer> open_;  ///< the first `open_count_` are open; the others keep their memory
  std::size_t open_count_ = 0;
  std::optional<Error> failure_;
};

Result<Tape> read_json(std::string_view text, std::size_t depth) {
  TapeBuilder builder(depth);
  if (auto read = builder.read(text); !read) {
    return read.error();
  }
  return std::move(builder.tape());
}

TapeReader::TapeReader(std::size_t depth) : builder_(std::make_unique<TapeBuilder>(depth)) {}

TapeReader::~TapeReader() = default;

Result<Value> TapeReader::read(std::string_view text) {
  if (auto read = builder_->read(text); !read) {
    return read.error();
  }
  return builder_->tape().root();
}

Value Tape::root() const { return {*this, 0}; }

std::optional<Value> Value::member(std::string_view key) const {
  std::optional<Value> found;
  if (is(TokenType::Object)) {
    each_member([&](std::string_view name, Value value) {
      if (name == key) {
        found = value;
      }
      return !found;
    });
  }
  return found;
}

std::string Value::describe() const {
  switch (type()) {
    case TokenType::Null:
      return "null";
    case TokenType::Bool:
      return token().boolean ? "true" : "false";
    case TokenType::Negative:
      return fmt::format("{}", token().negative);
    case TokenType::Unsigned:
      return fmt::format("{}", token().natural);
    case TokenType::Double:
      return fmt::format("{}", token().real);
    case TokenType::String:
      return quote_escaped(text());
    case TokenType::Key:
      return "a key";
    case TokenType::Object:
      return "an object";
    case TokenType::Array:
      return "an array";
  }
  return "a value";
}

}  // namespace gradsync::rpc
