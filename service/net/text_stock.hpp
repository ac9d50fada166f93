#pragma once
// Texts that were sent, for those to come: writing one of them takes no memory. Thread: io only.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::net {

class TextStock {
 public:
  static constexpr std::size_t kTexts = 16;
  static constexpr std::size_t kTextBytes = std::size_t{64} << 10;  ///< a longer one is rare, and not kept

  TextStock() { texts_.reserve(kTexts); }

  /// Empty, with the memory of the text that came last; or without any.
  [[nodiscard]] std::string take() {
    if (texts_.empty()) {
      return {};
    }
    std::string text = std::move(texts_.back());
    texts_.pop_back();
    return text;
  }

  void give_back(std::string text) {
    if (texts_.size() < kTexts && text.capacity() <= kTextBytes) {
      text.clear();
      texts_.push_back(std::move(text));
    }
  }

 private:
  std::vector<std::string> texts_;
};

}  // namespace gradsync::net
