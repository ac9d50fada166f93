#pragma once
// A text that does not change and that its copies share, for names which every report repeats.

#include <memory>
#include <string>
#include <utility>

namespace gradsync {

class SharedText {
 public:
  SharedText() = default;

  SharedText(std::string text) : text_(std::make_shared<const std::string>(std::move(text))) {}  // NOLINT: as a string

  SharedText(const char* text) : SharedText(std::string(text)) {}  // NOLINT: as a string

  [[nodiscard]] const std::string& str() const {
    static const std::string kEmpty;
    return text_ ? *text_ : kEmpty;
  }

  /// Whether both are copies of one text.
  [[nodiscard]] bool shares(const SharedText& other) const { return text_ == other.text_; }

  friend bool operator==(const SharedText& a, const SharedText& b) { return a.str() == b.str(); }

 private:
  std::shared_ptr<const std::string> text_;
};

}  // namespace gradsync
