#pragma once
// A limit for all, of which no process and no user may take everything: one process gets half, one uid three quarters.
// The daemon's own uid and root may take all of it. A process of a pid namespace that is not seen from here has pid 0,
// and counts for its uid only. Not synchronised: each has one thread.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace gradsync {

struct Holder {
  std::uint32_t uid = 0;
  std::int64_t pid = 0;  ///< 0: unknown
};

class FairBudget {
 public:
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

  enum class Bounds : std::uint8_t {
    All,
    OfUids,  ///< what there is for all is looked at elsewhere, and one process may have what its uid may
  };

  FairBudget(std::uint64_t most, std::uint32_t own_uid, Bounds bounds = Bounds::All)
      : most_(most), own_uid_(own_uid), bounds_(bounds) {}

  struct Refusal {
    std::string whose;  ///< "the daemon", "uid 1000" or "process 42"
    std::uint64_t held = 0;
    std::uint64_t most = 0;
  };

  /// Why the holder gets no more, or none. `beside`: what its uid holds besides, which is counted elsewhere.
  [[nodiscard]] std::optional<Refusal> refuse(const Holder& holder, std::uint64_t amount = 1, std::uint64_t beside = 0)
      const;

  void add(const Holder& holder, std::uint64_t amount = 1);
  void take(const Holder& holder, std::uint64_t amount = 1);

  [[nodiscard]] std::uint64_t held() const { return held_; }

  [[nodiscard]] std::uint64_t most() const { return most_; }

  /// An amount that is held as long as this lives. The budget must outlive it.
  class Share {
   public:
    Share(FairBudget& budget, const Holder& holder, std::uint64_t amount)
        : budget_(&budget), holder_(holder), amount_(amount) {
      budget.add(holder, amount);
    }

    Share(Share&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), holder_(other.holder_), amount_(other.amount_) {}

    Share& operator=(Share&&) = delete;

    void grow(std::uint64_t amount) {
      budget_->add(holder_, amount);
      amount_ += amount;
    }

    void shrink_to(std::uint64_t amount) {
      const std::uint64_t less = amount_ - std::min(amount_, amount);
      budget_->take(holder_, less);
      amount_ -= less;
    }

    ~Share() {
      if (budget_ != nullptr) {
        budget_->take(holder_, amount_);
      }
    }

   private:
    FairBudget* budget_;
    Holder holder_;
    std::uint64_t amount_;
  };

 private:
  std::uint64_t most_;
  std::uint32_t own_uid_;
  Bounds bounds_;
  std::uint64_t held_ = 0;
  std::map<std::uint32_t, std::uint64_t> of_uid_;
  std::map<std::pair<std::uint32_t, std::int64_t>, std::uint64_t> of_process_;
};

}  // namespace gradsync
