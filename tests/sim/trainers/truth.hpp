#pragma once
// What is true of a job as a whole: which attempt ranks asked for, what they were told of it, and the weights that
// follow. It breaks no rule by itself; what it finds broken is a breach.

#include "base/error.hpp"
#include "engine/report/report.hpp"
#include "engine/types.hpp"
#include "sim/trainers/gradients.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::sim {

/// What a rank needs of a report, in the text that the record keeps as well.
struct Told {
  std::uint64_t norm = 0;         ///< its bits
  std::uint64_t coefficient = 0;  ///< likewise
  bool skipped = false;
  std::string policies;  ///< digest of their state after the step
  std::string findings;  ///< of which tensors and ranks
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;

  friend bool operator==(const Told&, const Told&) = default;
};

[[nodiscard]] Told told_by(const engine::StepReport& report);
[[nodiscard]] std::string text_of(const Told& told);
[[nodiscard]] std::optional<Told> told_by(std::string_view text);

class Truth {
 public:
  explicit Truth(std::function<void(std::string)> breach) : breach_(std::move(breach)) {}

  /// The job begins anew with these ranks, from the weights of a step that was done.
  void begin(std::int64_t world, std::int64_t step, std::shared_ptr<const Gradients> gradients);

  /// The rank asks for the end of an attempt, in which its gradient has the magnitude.
  void asked(std::uint64_t word, std::int64_t rank, std::int64_t step, double magnitude);
  /// The same on data path arena, with its gradients.
  void gives(std::uint64_t word, std::int64_t rank, std::int64_t step, const Gift& gift);
  void done(std::uint64_t word, std::int64_t rank, const Told& told);
  void failed(std::uint64_t word, std::int64_t rank, const std::string& why);
  /// A record says that the attempt is done.
  void stored(std::uint64_t word);
  /// The weight of a rank that was told of the step.
  void weighs(std::int64_t rank, std::int64_t step, double weight);
  /// Which node has which ranks in an epoch, as the ranks of one daemon were told it.
  void roster(std::uint64_t epoch, std::uint64_t hash);
  /// And which nodes these are, as one daemon was told it.
  void names(std::uint64_t epoch, std::uint64_t hash);

  /// What the gradients of an attempt that is done have to be, but for the coefficient; null: some ranks gave none.
  [[nodiscard]] const Gradients::Sums* sums_of(std::uint64_t word);

  [[nodiscard]] std::int64_t steps() const { return static_cast<std::int64_t>(weights_.size()) - 1; }

  [[nodiscard]] double weight() const { return weights_.back(); }

  [[nodiscard]] std::int64_t world() const { return world_; }

  [[nodiscard]] std::uint64_t attempts_done() const { return done_; }

  [[nodiscard]] std::uint64_t attempts_failed() const { return failed_; }

 private:
  struct Attempt {
    std::int64_t step = 0;
    std::uint64_t beginning = 0;  ///< of the job, in which ranks asked
    std::map<std::int64_t, double> asked = {};
    Gifts gifts = {};
    std::map<std::int64_t, std::int64_t> steps = {};  ///< that ranks asked for, data path arena
    std::optional<Told> told = {};
    std::optional<std::string> failed = {};
  };

  struct Summed {
    std::uint64_t word = 0;
    Gradients::Sums sums;
  };

  Attempt& attempt_asked(std::uint64_t word, std::int64_t step);
  void check_contributions(std::uint64_t word, const Attempt& attempt, const Told& told);
  void check_findings(std::uint64_t word, const Attempt& attempt, const Told& told);

  std::function<void(std::string)> breach_;
  std::int64_t world_ = 0;
  std::shared_ptr<const Gradients> gradients_;  ///< null: data path stats
  std::optional<Summed> summed_;                ///< the last one
  std::uint64_t beginnings_ = 0;
  std::map<std::uint64_t, Attempt> attempts_;
  std::map<std::uint64_t, std::uint64_t> rosters_;  ///< by epoch
  std::map<std::uint64_t, std::uint64_t> names_;    ///< likewise
  std::vector<double> weights_{1.0};                ///< after so many steps
  std::uint64_t done_ = 0;
  std::uint64_t failed_ = 0;
};

/// The weight after a step whose gradients were multiplied by the coefficient.
[[nodiscard]] double weight_after(double weight, std::int64_t step, const Told& told);

}  // namespace gradsync::sim
