#pragma once
// The state of typed reading: the path to the current field and the first error. The rules per type are in codec.hpp.

#include "base/error.hpp"
#include "plan/limits.hpp"
#include "rpc/json/json_tape.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::rpc {

/// Least and most: of a number, of a text's bytes, of a list's items. Inclusive.
struct Bounds {
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
};

inline constexpr Bounds kNatural{0, std::numeric_limits<std::int64_t>::max()};
inline constexpr Bounds kPositive{1, std::numeric_limits<std::int64_t>::max()};
inline constexpr Bounds kNameLength{1, 256};
inline constexpr Bounds kPlanNameLength{1, plan::kMaxNameBytes};  ///< names and labels of a declaration
inline constexpr Bounds kTimeoutMs{1, 30LL * 24 * 3600 * 1000};  ///< up to 30 days: added to a clock it never overflows

class FieldReader {
 public:
  /// One step of the path, for the lifetime of the object.
  class Step {
   public:
    Step(FieldReader& reader, std::string_view field) : reader_(reader) { reader_.path_.push_back({field, 0}); }

    Step(FieldReader& reader, std::size_t index) : reader_(reader) { reader_.path_.push_back({{}, index}); }

    ~Step() { reader_.path_.pop_back(); }

    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    FieldReader& reader_;
  };

  /// Forgets the last message, and keeps its memory.
  void begin() {
    path_.clear();
    members.clear();
    failed_ = false;
  }

  [[nodiscard]] const Error& error() const { return error_; }

  // Each of these notes the error (the first one stays) and returns false.
  bool wrong_type(Value found, std::string_view expected);
  bool too_long(Value integer);
  bool out_of_range(const std::string& found, std::string_view unit, Bounds bounds);
  bool wrong_count(std::int64_t items, Bounds bounds);
  bool missing(std::string_view field);
  bool unknown(std::string_view field, const std::vector<std::string>& known);
  bool fail(std::string message, std::string hint = {});

  /// True where the list has as many items as the bounds allow. None of them is looked at, so a list that is too long
  /// takes no memory.
  bool has_count(Value list, Bounds bounds) {
    if (bounds.least <= 0 && bounds.most == Bounds{}.most) {
      return true;
    }
    const std::int64_t items = list.item_count();
    return (items >= bounds.least && items <= bounds.most) || wrong_count(items, bounds);
  }

  /// Members of the object being read, shared by all levels so that steady reading allocates nothing.
  struct Member {
    std::string_view key;
    Value value;
    bool used = false;
  };

  std::vector<Member> members;

 private:
  struct PathStep {
    std::string_view field;  ///< empty: an index
    std::size_t index = 0;
  };

  [[nodiscard]] std::string path_text() const;

  std::vector<PathStep> path_;
  Error error_;
  bool failed_ = false;
};

}  // namespace gradsync::rpc
