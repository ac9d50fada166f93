#pragma once
// Texts on their way to a socket, in order. The front stays where it is while others come behind it, for it is being
// written. Two lists take turns, one that is written and one that comes, and keep their memory. Thread: io only.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::net {

class TextQueue {
 public:
  static constexpr std::size_t kKeptPlaces = 64;

  void push(std::string text) {
    const std::size_t bytes = text.size();
    coming_.push_back(std::move(text));
    bytes_ += bytes;
    if (written_ == writing_.size()) {
      turn();
    }
  }

  [[nodiscard]] const std::string& front() const { return writing_[written_]; }

  /// The front, which has been written.
  std::string pop() {
    std::string text = std::move(writing_[written_]);
    bytes_ -= text.size();
    ++written_;
    if (written_ == writing_.size()) {
      turn();
    }
    return text;
  }

  [[nodiscard]] bool empty() const { return written_ == writing_.size(); }

  /// The bytes of all texts in it.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  void turn() {
    writing_.clear();
    if (writing_.capacity() > kKeptPlaces) {
      std::vector<std::string>().swap(writing_);  // many waited once
    }
    written_ = 0;
    writing_.swap(coming_);
  }

  std::vector<std::string> writing_;
  std::size_t written_ = 0;  ///< texts of `writing_` that are written; all: there is none to write
  std::vector<std::string> coming_;
  std::size_t bytes_ = 0;
};

}  // namespace gradsync::net
