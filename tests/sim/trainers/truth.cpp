#include "sim/trainers/truth.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <utility>

namespace gradsync::sim {

namespace {

std::string named(std::uint64_t word) {
  return fmt::format("attempt {} of epoch {}", (word & 0xFFFFFFFFu) - 1, word >> 32);
}

}  // namespace

Told told_by(const engine::StepReport& report) {
  return {
      std::bit_cast<std::uint64_t>(report.norm),
      std::bit_cast<std::uint64_t>(report.coefficient),
      report.skipped,
      report.policy_digest,
      findings_of(report),
      report.epoch,
      report.attempt};
}

std::string text_of(const Told& told) {
  return fmt::format(
      "{:x} {:x} {:d} {} {} {} {}",
      told.norm,
      told.coefficient,
      told.skipped,
      told.epoch,
      told.attempt,
      told.policies.empty() ? "-" : told.policies,
      told.findings.empty() ? "-" : told.findings
  );
}

std::optional<Told> told_by(std::string_view text) {
  Told told;
  int skipped = 0;
  std::array<char, 129> policies{};
  std::array<char, 1025> findings{};
  const std::string copy(text);
  if (std::sscanf(
          copy.c_str(),
          "%lx %lx %d %lu %lu %128s %1024s",
          &told.norm,
          &told.coefficient,
          &skipped,
          &told.epoch,
          &told.attempt,
          policies.data(),
          findings.data()
      ) != 7) {
    return std::nullopt;
  }
  told.skipped = skipped != 0;
  told.policies = policies.data();
  told.policies = told.policies == "-" ? "" : told.policies;
  told.findings = findings.data();
  told.findings = told.findings == "-" ? "" : told.findings;
  return told;
}

double weight_after(double weight, std::int64_t step, const Told& told) {
  return told.skipped
             ? weight
             : weight - std::bit_cast<double>(told.coefficient) * (0.01 + 0.001 * static_cast<double>(step % 7));
}

void Truth::begin(std::int64_t world, std::int64_t step, std::shared_ptr<const Gradients> gradients) {
  world_ = world;
  gradients_ = std::move(gradients);
  ++beginnings_;
  weights_.resize(static_cast<std::size_t>(step) + 1);
}

void Truth::asked(std::uint64_t word, std::int64_t rank, std::int64_t step, double magnitude) {
  attempt_asked(word, step).asked[rank] = magnitude;
}

void Truth::gives(std::uint64_t word, std::int64_t rank, std::int64_t step, const Gift& gift) {
  Attempt& attempt = attempt_asked(word, step);
  attempt.gifts[rank] = gift;
  attempt.steps[rank] = step;
}

Truth::Attempt& Truth::attempt_asked(std::uint64_t word, std::int64_t step) {
  Attempt& attempt = attempts_[word];
  attempt.step = step;
  attempt.beginning = beginnings_;
  return attempt;
}

const Gradients::Sums* Truth::sums_of(std::uint64_t word) {
  const auto found = attempts_.find(word);
  if (found == attempts_.end() || static_cast<std::int64_t>(found->second.gifts.size()) != world_) {
    return nullptr;
  }
  if (!summed_ || summed_->word != word) {
    summed_ = Summed{word, gradients_->sums_of(found->second.gifts)};
  }
  return &summed_->sums;
}

void Truth::done(std::uint64_t word, std::int64_t rank, const Told& told) {
  Attempt& attempt = attempts_[word];
  if (attempt.failed) {
    breach_(fmt::format("{} is done for rank {}, and failed for another: {}", named(word), rank, *attempt.failed));
  }
  if (attempt.told) {
    if (*attempt.told != told) {
      breach_(fmt::format(
          "rank {} is told '{}' of {}, and another one '{}'", rank, text_of(told), named(word), text_of(*attempt.told)
      ));
    }
    return;
  }
  attempt.told = told;
  ++done_;
  if (attempt.beginning != beginnings_) {
    return;  // of ranks that have ended meanwhile, which nobody hears of any more
  }
  check_contributions(word, attempt, told);
  if (attempt.step != steps()) {
    breach_(fmt::format("{} did step {}, and step {} was next", named(word), attempt.step, steps()));
    return;
  }
  weights_.push_back(weight_after(weights_.back(), attempt.step, told));
}

/// Each rank holds two elements of one weight, and the same two of another.
void Truth::check_contributions(std::uint64_t word, const Attempt& attempt, const Told& told) {
  const auto differs = [&](const auto& each) { return each.second != attempt.steps.begin()->second; };
  if (std::ranges::any_of(attempt.steps, differs)) {
    breach_(fmt::format("{} is done, and ranks asked for different steps", named(word)));
  }
  double sum = 2;  // exact, as every part of it is an integer
  for (const auto& [rank, magnitude] : attempt.asked) {
    sum += 2 * magnitude * magnitude;
  }
  const std::size_t ranks = gradients_ ? attempt.gifts.size() : attempt.asked.size();
  if (static_cast<std::int64_t>(ranks) != world_) {
    breach_(fmt::format("{} is done with {} of {} ranks", named(word), ranks, world_));
    return;
  }
  // The gradients are in fp32, and so is their norm.
  const double norm = static_cast<float>(gradients_ ? gradients_->norm_of(*sums_of(word)) : std::sqrt(sum));
  const auto is = std::bit_cast<double>(told.norm);
  if (told.norm != std::bit_cast<std::uint64_t>(norm) && !(std::isnan(is) && std::isnan(norm))) {
    breach_(fmt::format("the norm of {} is {}, and that of all ranks {}", named(word), is, norm));
  }
  if (gradients_) {
    check_findings(word, attempt, told);
  }
}

/// Copies are compared in some steps.
void Truth::check_findings(std::uint64_t word, const Attempt& attempt, const Told& told) {
  const std::string wanted = gradients_->findings_of(attempt.gifts, *sums_of(word));
  const bool compared = std::ranges::all_of(attempt.gifts, [](const auto& each) { return each.second.compared; });
  if (told.findings != wanted && (compared || told.findings != wanted.substr(0, wanted.find('/')))) {
    breach_(fmt::format("of {} '{}' is reported, and not '{}'", named(word), told.findings, wanted));
  }
}

void Truth::failed(std::uint64_t word, std::int64_t rank, const std::string& why) {
  Attempt& attempt = attempts_[word];
  if (attempt.told) {
    breach_(fmt::format("{} failed for rank {}, and is done for another: {}", named(word), rank, why));
  }
  failed_ += attempt.failed ? 0 : 1;
  attempt.failed = why;
}

void Truth::stored(std::uint64_t word) {
  const auto found = attempts_.find(word);
  if (found != attempts_.end() && found->second.failed) {
    breach_(fmt::format("{} is stored as done after a rank was told that it failed", named(word)));
  }
}

void Truth::weighs(std::int64_t rank, std::int64_t step, double weight) {
  const auto after = static_cast<std::size_t>(step);
  if (after >= weights_.size() || weights_[after] != weight) {
    breach_(fmt::format("the weight of rank {} after {} steps is not that of the others", rank, step));
  }
}

void Truth::roster(std::uint64_t epoch, std::uint64_t hash) {
  const auto [known, added] = rosters_.try_emplace(epoch, hash);
  if (!added && known->second != hash) {
    breach_(fmt::format("two rosters of epoch {}", epoch));
  }
}

void Truth::names(std::uint64_t epoch, std::uint64_t hash) {
  const auto [known, added] = names_.try_emplace(epoch, hash);
  if (!added && known->second != hash) {
    breach_(fmt::format("two lists of nodes of epoch {}", epoch));
  }
}

}  // namespace gradsync::sim
