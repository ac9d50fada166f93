#pragma once
// Values to bytes and back: little-endian numbers, one byte for a bool or an enumeration, a count before the elements
// of a list. The fields of a struct are what `fields(archive, value)` names, in that order; both directions use the
// same function. File descriptors travel beside the bytes, in order.

#include "base/shared_list.hpp"
#include "base/unique_fd.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace gradsync::device {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in memory");

/// A type that may be copied as it lies in memory: every pattern of its bits is a value.
template <typename T>
concept PlainNumber = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

/// Specialised by `value`, the highest enumerator, for each enumeration that crosses. They count from 0 without gaps.
template <typename T>
struct LastOf;

template <typename T>
concept CountedEnum = std::is_enum_v<T> && sizeof(T) == 1 && requires { LastOf<T>::value; };

/// A T, const where it is written and not const where it is read.
template <typename T, typename Struct>
concept Same = std::same_as<std::remove_const_t<T>, Struct>;

class ByteWriter {
 public:
  /// Appends the values. A UniqueFd is moved out of where it was.
  template <typename... Ts>
  void operator()(Ts&... values) {
    (put(values), ...);
  }

  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;

 private:
  void append(const void* data, std::size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), first, first + size);
  }

  template <PlainNumber T>
  void put(const T& value) {
    append(&value, sizeof(T));
  }

  void put(const bool& value) { bytes.push_back(std::byte{value}); }

  template <CountedEnum T>
  void put(const T& value) {
    bytes.push_back(static_cast<std::byte>(value));
  }

  void put(UniqueFd& fd) {
    put(fd.valid());
    if (fd.valid()) {
      fds.push_back(std::move(fd));
    }
  }

  void put(const std::string& text) {
    put(std::uint64_t{text.size()});
    append(text.data(), text.size());
  }

  template <PlainNumber T, std::size_t Size>
  void put(const std::array<T, Size>& values) {
    append(values.data(), sizeof(values));
  }

  template <PlainNumber T, std::size_t Size>
  void put(std::array<T, Size>& values) {
    append(values.data(), sizeof(values));
  }

  template <typename T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) {
      put(*value);
    }
  }

  template <typename T>
  void put(const std::shared_ptr<const T>& value) {
    put(value != nullptr);
    if (value) {
      put(*value);
    }
  }

  template <typename A, typename B>
  void put(const std::pair<A, B>& value) {
    put(value.first);
    put(value.second);
  }

  template <typename T>
  void put(const std::vector<T>& list) {
    put_list(list);
  }

  template <typename T>
  void put(std::vector<T>& list) {
    put_list(list);
  }

  template <typename T>
  void put(const SharedList<T>& list) {
    put(std::uint64_t{list.size()});
    for (const T& element : list) {
      put(element);
    }
  }

  /// Descriptors in its elements are moved out of it, unless it is const.
  void put_list(auto& list) {
    using T = typename std::remove_reference_t<decltype(list)>::value_type;
    put(std::uint64_t{list.size()});
    if constexpr (PlainNumber<T>) {
      append(list.data(), list.size() * sizeof(T));
    } else {
      for (auto& element : list) {
        put(element);
      }
    }
  }

  template <typename T>
    requires std::is_aggregate_v<T>
  void put(T& value) {
    fields(*this, value);
  }
};

/// The least number of bytes that a T has: those of a new one, whose lists are empty.
template <typename T>
[[nodiscard]] std::size_t least_bytes() {
  static const std::size_t least = [] {
    T fresh{};
    ByteWriter writer;
    writer(fresh);
    return writer.bytes.size();
  }();
  return least;
}

/// Reads bytes that are not trusted. After the first problem nothing more is read or allocated. A list is allocated
/// only where the bytes that are left could hold its elements, so that memory is bounded by the size of the message.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::vector<UniqueFd> fds) : bytes_(bytes), fds_(std::move(fds)) {}

  template <typename... Ts>
  void operator()(Ts&... values) {
    (get(values), ...);
  }

  /// Empty: everything was read, and was right.
  [[nodiscard]] std::string problem() const {
    if (problem_.empty() && (at_ != bytes_.size() || next_fd_ != fds_.size())) {
      return fmt::format("{} bytes and {} descriptors are left over", bytes_.size() - at_, fds_.size() - next_fd_);
    }
    return problem_;
  }

 private:
  [[nodiscard]] std::size_t left() const { return bytes_.size() - at_; }

  void fail(std::string what) {
    if (problem_.empty()) {
      problem_ = fmt::format("byte {}: {}", at_, what);
    }
    at_ = bytes_.size();
  }

  bool take(void* to, std::size_t size) {
    if (!problem_.empty()) {
      return false;
    }
    if (size > left()) {
      fail(fmt::format("{} bytes are needed, {} are left", size, left()));
      return false;
    }
    if (size != 0) {
      std::memcpy(to, bytes_.data() + at_, size);
      at_ += size;
    }
    return true;
  }

  /// One byte, at most `last`.
  std::uint8_t small_number(std::uint8_t last) {
    std::uint8_t value = 0;
    if (take(&value, 1) && value > last) {
      --at_;
      fail(fmt::format("{} where at most {} is possible", value, last));
      value = 0;
    }
    return value;
  }

  /// A number of elements of at least `each` bytes, for which there are bytes enough.
  std::size_t count(std::size_t each) {
    std::uint64_t value = 0;
    get(value);
    if (value > left() / each) {
      fail(fmt::format("{} elements of at least {} bytes each, {} bytes are left", value, each, left()));
      return 0;
    }
    return static_cast<std::size_t>(value);
  }

  template <PlainNumber T>
  void get(T& value) {
    take(&value, sizeof(T));
  }

  void get(bool& value) { value = small_number(1) != 0; }

  template <CountedEnum T>
  void get(T& value) {
    value = static_cast<T>(small_number(static_cast<std::uint8_t>(LastOf<T>::value)));
  }

  void get(UniqueFd& fd) {
    if (small_number(1) == 0) {
      return;
    }
    if (next_fd_ == fds_.size()) {
      fail("a descriptor is missing");
      return;
    }
    fd = std::move(fds_[next_fd_++]);
  }

  void get(std::string& text) {
    text.resize(count(1));
    take(text.data(), text.size());
  }

  template <PlainNumber T, std::size_t Size>
  void get(std::array<T, Size>& values) {
    take(values.data(), sizeof(values));
  }

  template <typename T>
  void get(std::optional<T>& value) {
    if (small_number(1) != 0) {
      get(value.emplace());
    }
  }

  template <typename T>
  void get(std::shared_ptr<const T>& value) {
    if (small_number(1) != 0) {
      auto read = std::make_shared<T>();
      get(*read);
      value = std::move(read);
    }
  }

  template <typename A, typename B>
  void get(std::pair<A, B>& value) {
    get(value.first);
    get(value.second);
  }

  template <typename T>
  void get(std::vector<T>& list) {
    list.resize(count(least_bytes<T>()));
    if constexpr (PlainNumber<T>) {
      take(list.data(), list.size() * sizeof(T));
    } else {
      for (T& element : list) {
        get(element);
      }
    }
  }

  template <typename T>
  void get(SharedList<T>& list) {
    get(list.own());
  }

  template <typename T>
    requires std::is_aggregate_v<T>
  void get(T& value) {
    fields(*this, value);
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::vector<UniqueFd> fds_;
  std::size_t next_fd_ = 0;
  std::string problem_;
};

}  // namespace gradsync::device
