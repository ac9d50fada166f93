#pragma once
// A list whose copies share one until one of them is written. Read on any thread.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace gradsync {

template <typename T>
class SharedList {
 public:
  SharedList() = default;

  SharedList(std::vector<T> items)  // NOLINT(google-explicit-constructor): as a list
      : list_(std::make_shared<List>(std::move(items))) {}

  [[nodiscard]] std::size_t size() const { return list_ ? list_->size() : 0; }

  [[nodiscard]] bool empty() const { return size() == 0; }

  [[nodiscard]] const T& operator[](std::size_t index) const { return (*list_)[index]; }

  [[nodiscard]] const T* begin() const { return list_ ? list_->data() : nullptr; }

  [[nodiscard]] const T* end() const { return begin() + size(); }

  /// The list to be written: first copied where others share it.
  [[nodiscard]] std::vector<T>& own() {
    if (!list_ || list_.use_count() > 1) {
      list_ = std::make_shared<List>(begin(), end());
    }
    return *list_;
  }

  /// Equal for copies that share one list.
  [[nodiscard]] const void* identity() const { return list_.get(); }

  friend bool operator==(const SharedList& a, const SharedList& b) {
    return a.list_ == b.list_ || std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

  /// Finds a list as long as somebody has it.
  class Watch {
   public:
    explicit Watch(const SharedList& items) : list_(items.list_) {}

    /// Empty where nobody has it any more.
    [[nodiscard]] SharedList list() const { return SharedList(list_.lock()); }

   private:
    std::weak_ptr<std::vector<T>> list_;
  };

 private:
  using List = std::vector<T>;

  explicit SharedList(std::shared_ptr<List> list) : list_(std::move(list)) {}

  std::shared_ptr<List> list_;
};

}  // namespace gradsync
