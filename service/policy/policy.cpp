#include "policy/policy.hpp"

#include "plan/check/words.hpp"
#include "policy/state_bytes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace gradsync::policy {

Policy::Policy(const plan::ClipOptions& clip, plan::ClipMode mode, plan::DType norm_dtype, double norm_type)
    : clip_(clip),
      mode_(mode),
      norm_dtype_(norm_dtype),
      settings_(fmt::format("{}, norm_type {}", plan::words_of(clip.policy), norm_type)) {
  clip_.watch.clear();
  if (const auto* automatic = std::get_if<plan::AutoPolicy>(&clip.policy)) {
    memory_.emplace<Percentile>(*automatic);
  } else if (const auto* percentile = std::get_if<plan::PercentilePolicy>(&clip.policy)) {
    memory_.emplace<Percentile>(*percentile);
  } else if (const auto* zscore = std::get_if<plan::ZScorePolicy>(&clip.policy)) {
    memory_.emplace<ZScore>(*zscore);
  }
}

plan::ClipRule Policy::rule() const {
  plan::ClipRule rule;
  rule.max_norm = clip_.max_norm;
  rule.mode = mode_;
  rule.zero_rule = clip_.zero_rule;
  rule.norm_dtype = norm_dtype_;
  rule.nonfinite = clip_.nonfinite;
  rule.spike = skips_ < kMaxSpikeSkips ? clip_.spike : plan::SpikeAction::Clip;
  if (const auto* percentile = std::get_if<Percentile>(&memory_)) {
    rule.bound = percentile->bound();
  } else if (const auto* zscore = std::get_if<ZScore>(&memory_)) {
    rule.bound = zscore->bound();
  } else if (std::holds_alternative<plan::ObservePolicy>(clip_.policy)) {
    rule.max_norm.reset();
  } else if (clip_.max_norm.value_or(0) > 0) {
    rule.spike_above = clip_.spike_factor * *clip_.max_norm;
  }
  if (rule.bound.begin > 0 && rule.bound.kind != plan::ClipBound::Kind::None) {  // by 0 every norm would be a spike
    rule.spike_above = clip_.spike_factor * rule.bound.begin;
  }
  return rule;
}

bool Policy::takes_every_norm() const {
  const auto* percentile = std::get_if<Percentile>(&memory_);
  return percentile != nullptr && percentile->takes_every_norm();
}

void Policy::record(const plan::ClipOutcome& outcome) {
  const bool stepped = outcome.action != plan::StepAction::Skip && outcome.action != plan::StepAction::Raise;
  if (!stepped) {
    const bool skipped = outcome.spike && clip_.spike == plan::SpikeAction::Skip;
    skips_ = std::min(skips_ + (skipped ? 1 : 0), kMaxSpikeSkips);
  } else if (std::isfinite(outcome.norm)) {
    skips_ = outcome.spike ? skips_ : 0;
  }
  if (!takes_every_norm() && !(stepped && std::isfinite(outcome.norm))) {
    return;
  }
  if (auto* percentile = std::get_if<Percentile>(&memory_)) {
    percentile->record(outcome.norm);
  } else if (auto* zscore = std::get_if<ZScore>(&memory_)) {
    zscore->record(outcome.norm);
  }
}

void Policy::save(std::string& bytes) const {
  std::vector<double> numbers{static_cast<double>(skips_)};
  std::visit(
      [&numbers](const auto& memory) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(memory)>, Stateless>) {
          memory.save(numbers);
        }
      },
      memory_
  );
  write_state({settings_, std::move(numbers)}, bytes);
}

Result<void> Policy::restore(std::string_view bytes) {
  const Result<State> state = read_state(bytes, settings_);
  if (!state) {
    return state.error();
  }
  const std::span<const double> numbers(state->numbers);
  const double skips = numbers.empty() ? -1 : numbers.front();
  if (!(skips >= 0 && skips <= kMaxSpikeSkips && skips == std::floor(skips)) || std::signbit(skips)) {
    return damaged_state("the state does not say how many spikes were skipped");
  }
  Result<void> restored;
  if (auto* percentile = std::get_if<Percentile>(&memory_)) {
    restored = percentile->restore(numbers.subspan(1));
  } else if (auto* zscore = std::get_if<ZScore>(&memory_)) {
    restored = zscore->restore(numbers.subspan(1));
  } else if (numbers.size() != 1) {
    restored = damaged_state(fmt::format("a policy that remembers nothing has {} numbers", numbers.size() - 1));
  }
  if (restored) {
    skips_ = static_cast<std::uint32_t>(skips);
  }
  return restored;
}

bool remembers_norms(std::string_view state) { return count_of(state) > 1; }

}  // namespace gradsync::policy
