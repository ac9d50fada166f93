#include "plan/check/check_policy.hpp"

#include "plan/check/words.hpp"
#include "plan/limits.hpp"

#include <fmt/format.h>

#include <cmath>
#include <variant>

namespace gradsync::plan {

namespace {

class Check {
 public:
  explicit Check(const std::string& path) : path_(path) {}

  Result<void> operator()(const FixedPolicy& /*policy*/) const { return {}; }

  Result<void> operator()(const ObservePolicy& /*policy*/) const { return {}; }

  /// Auto gradient clipping too.
  Result<void> operator()(const PercentilePolicy& policy) const {
    if (!(policy.percentile > 0 && policy.percentile <= 100)) {
      return refuse(
          "percentile",
          fmt::format("percentile is {}, a number in (0, 100] is expected", policy.percentile),
          "95 clips the largest twentieth of the norms"
      );
    }
    if (policy.window < 1 || policy.window > kMaxWindow) {
      return refuse(
          "window",
          fmt::format("window is {}, 1 to {} norms are expected", policy.window, kMaxWindow),
          "1000 norms are usual"
      );
    }
    if (policy.warmup < 1 || policy.warmup > policy.window) {
      return refuse(
          "warmup",
          fmt::format(
              "warmup is {}, 1 to {} norms are expected: it ends within the window", policy.warmup, policy.window
          ),
          "give a warmup of at most the window, a tenth of it for example"
      );
    }
    return {};
  }

  Result<void> operator()(const ZScorePolicy& policy) const {
    if (!(policy.z > 0 && std::isfinite(policy.z))) {
      return refuse("z", fmt::format("z is {}, a number > 0 is expected", policy.z), "2.5 deviations are usual");
    }
    if (!(policy.alpha > 0 && policy.alpha < 1)) {
      return refuse(
          "alpha",
          fmt::format("alpha is {}, a number in (0, 1) is expected", policy.alpha),
          "0.97 remembers about 33 steps"
      );
    }
    if (policy.warmup < 2 || policy.warmup > kMaxWindow) {
      return refuse(
          "warmup",
          fmt::format("warmup is {}, 2 to {} norms are expected: one has no deviation", policy.warmup, kMaxWindow),
          "25 norms are usual"
      );
    }
    return {};
  }

 private:
  Result<void> refuse(const char* field, std::string message, std::string hint) const {
    return invalid_params(fmt::format("{}.{}", path_, field), std::move(message), std::move(hint));
  }

  const std::string& path_;
};

std::int64_t norms_of(const PolicyOptions& policy) {
  if (const PercentilePolicy* percentile = percentile_in(policy)) {
    return percentile->window;
  }
  const auto* zscore = std::get_if<ZScorePolicy>(&policy);
  return zscore != nullptr ? zscore->warmup : 0;
}

}  // namespace

std::int64_t remembered_norms(const ClipOptions& clip) {
  std::int64_t norms = norms_of(clip.policy);
  for (const PolicyOptions& policy : clip.watch) {
    norms += norms_of(policy);
  }
  return norms;
}

Result<void> check_policy(const PolicyOptions& policy, const std::string& path) {
  return std::visit(Check(path), policy);
}

Result<void> check_policies(const ClipOptions& clip, const std::string& path) {
  if (const auto checked = check_policy(clip.policy, path + ".policy"); !checked) {
    return checked;
  }
  if (!(clip.spike_factor > 1 && std::isfinite(clip.spike_factor))) {
    return invalid_params(
        path + ".spike_factor",
        fmt::format("spike_factor is {}, a number > 1 is expected", clip.spike_factor),
        "3 calls a norm of three times the threshold a spike"
    );
  }
  if (clip.watch.size() > kMaxWatchingPolicies) {
    return invalid_params(
        path + ".watch",
        fmt::format("{} policies watch, at most {} may", clip.watch.size(), kMaxWatchingPolicies),
        "try the others on a recorded run: gradsyncd policy replay"
    );
  }
  for (std::size_t i = 0; i < clip.watch.size(); ++i) {
    if (const auto checked = check_policy(clip.watch[i], fmt::format("{}.watch[{}]", path, i)); !checked) {
      return checked;
    }
  }
  return {};
}

}  // namespace gradsync::plan
