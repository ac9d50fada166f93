#pragma once
// Signs that the clipping of a group is not healthy. Pure; one owner, one thread; a step costs O(1) and takes no
// memory.
//
// Steps are counted in windows, one after the other. At the end of a window each sign is judged by its numbers: it
// begins, lasts or is over. So a sign is judged once per window, and the rate of false alarms is that of one test.
// Nothing of it is saved: a daemon that begins anew begins a new window.

#include "plan/policy_options.hpp"

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace gradsync::policy {

enum class Sign : std::uint8_t {
  ClipRate,             ///< a percentile p clips far more, or far less, than 100 − p per cent of the steps
  ThresholdCollapsing,  ///< an adaptive threshold fell to less than a tenth within a window
  AtCeiling,            ///< max_norm decided in every step; for a fixed policy: it clipped every step
  NormsRising  ///< the geometric mean rose by a tenth or more in each of the last three windows or more, and doubled
};
inline constexpr std::array kSigns{Sign::ClipRate, Sign::ThresholdCollapsing, Sign::AtCeiling, Sign::NormsRising};

[[nodiscard]] std::string_view name_of(Sign sign);  ///< "clip_rate", "threshold_collapsing", …

/// A step that was decided by a policy.
struct ClipStep {
  double norm = 0;
  double threshold = std::numeric_limits<double>::infinity();  ///< the one that was applied; infinite: none
  double own = std::numeric_limits<double>::infinity();        ///< that of the policy, without the ceiling
  double ceiling = std::numeric_limits<double>::infinity();    ///< max_norm
  bool clipped = false;
};

/// What is known of the steps of a window.
struct ClipWindow {
  std::int64_t steps = 0;
  std::int64_t clipped = 0;
  double threshold = std::numeric_limits<double>::infinity();  ///< of the last step
  double lowest = std::numeric_limits<double>::infinity();     ///< threshold
  double highest = 0;                                          ///< threshold
  double own = std::numeric_limits<double>::infinity();        ///< of the last step
  std::int64_t own_steps = 0;    ///< in which the policy's own threshold was below the ceiling
  std::int64_t own_clipped = 0;  ///< of these
  std::int64_t own_pairs = 0;    ///< of these, with the step before clipped too
  std::int64_t at_ceiling = 0;   ///< steps that the ceiling decided
  std::int64_t norms = 0;        ///< above 0
  double log_norms = 0;          ///< their sum

  [[nodiscard]] double clip_rate() const {
    return steps == 0 ? 0 : static_cast<double>(clipped) / static_cast<double>(steps);
  }
};

class Health {
 public:
  using Signs = std::bitset<kSigns.size()>;

  struct Changes {
    Signs began;
    Signs ended;
  };

  /// A window has as many steps as that of a percentile, but at least 100 and at most 1,000; 1,000 for other policies.
  explicit Health(const plan::PolicyOptions& policy);

  /// A step whose norm is not finite is not counted. Only the last step of a window changes signs.
  [[nodiscard]] Changes observe(const ClipStep& step);

  [[nodiscard]] bool has(Sign sign) const { return signs_.test(static_cast<std::size_t>(sign)); }

  /// The last whole window; until there is one, what there is of the first.
  [[nodiscard]] const ClipWindow& window() const { return whole_ ? *whole_ : now_; }

  /// What the last whole window shows of this sign, with numbers; also where the sign is over.
  [[nodiscard]] std::string words(Sign sign) const;

 private:
  void judge();
  [[nodiscard]] bool clip_rate_is_far() const;
  [[nodiscard]] bool norms_rise();

  std::int64_t size_ = 1000;
  bool adaptive_ = false;
  std::optional<double> expected_rate_;  ///< of a percentile
  ClipWindow now_;
  std::optional<ClipWindow> whole_;
  double own_before_ = std::numeric_limits<double>::infinity();  ///< at the end of the window before the last whole one
  bool clipped_before_ = false;
  std::optional<double> log_mean_;  ///< of the last whole window
  double log_base_ = 0;             ///< of the window from which norms rose
  int rises_ = 0;                   ///< windows in a row whose mean rose
  Signs signs_;
};

}  // namespace gradsync::policy
