#include "engine/metrics.hpp"

#include "plan/check/words.hpp"

#include <cmath>
#include <initializer_list>
#include <string>
#include <variant>

namespace gradsync::engine {

namespace {

prometheus::Counter& counter(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
}

prometheus::Gauge& gauge(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}

prometheus::Histogram& histogram(prometheus::Registry& registry, const char* name, const char* help) {
  const prometheus::Histogram::BucketBoundaries bounds{1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3, 10, 30, 100};
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, bounds);
}

}  // namespace

PolicyMetrics::PolicyMetrics(prometheus::Registry& registry) {
  const auto family = [&registry](const char* name, const char* help) -> prometheus::Family<prometheus::Counter>& {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  };
  auto& clipped =
      family("gradsync_policy_clipped_total", "Steps of a clip group whose norm exceeded the threshold of a policy.");
  auto& skipped = family("gradsync_policy_skipped_total", "Steps that a policy skipped, or would have.");
  auto& raised = family("gradsync_policy_raised_total", "Steps that a policy refused with an error, or would have.");
  auto& signs = family("gradsync_clip_signs_total", "Times that a sign of ill health began, of any policy.");
  for (const policy::Sign sign : policy::kSigns) {
    signs_[static_cast<std::size_t>(sign)] = &signs.Add({{"sign", std::string(policy::name_of(sign))}});
  }
  for (const char* role : {"decides", "watches"}) {
    for (const plan::PolicyOptions& policy : std::initializer_list<plan::PolicyOptions>{
             plan::FixedPolicy{},
             plan::ObservePolicy{},
             plan::PercentilePolicy{},
             plan::ZScorePolicy{},
             plan::AutoPolicy{}}) {
      const prometheus::Labels labels{{"role", role}, {"policy", std::string(plan::name_of(policy))}};
      counters_.push_back({&clipped.Add(labels), &skipped.Add(labels), &raised.Add(labels)});
    }
  }
}

void PolicyMetrics::count(PolicyRole role, const plan::PolicyOptions& policy, const plan::ClipOutcome& outcome) {
  constexpr std::size_t kKinds = std::variant_size_v<plan::PolicyOptions>;
  const Counters& counters = counters_[static_cast<std::size_t>(role) * kKinds + policy.index()];
  if (outcome.clipped) {
    counters.clipped->Increment();
  }
  const bool decided = outcome.spike || !std::isfinite(outcome.norm);  // else another group did
  if (!decided) {
    return;
  }
  if (outcome.action == plan::StepAction::Skip) {
    counters.skipped->Increment();
  } else if (outcome.action == plan::StepAction::Raise) {
    counters.raised->Increment();
  }
}

EngineMetrics::EngineMetrics(prometheus::Registry& registry, std::int64_t most_job_gauges)
    : jobs(gauge(registry, "gradsync_jobs", "Jobs with at least one attached rank.")),
      ranks_attached(gauge(registry, "gradsync_ranks_attached", "Ranks attached, all jobs.")),
      arena_bytes(gauge(registry, "gradsync_arena_bytes", "Bytes of gradient arenas handed out.")),
      steps_committed(counter(registry, "gradsync_steps_committed_total", "Steps finished on all ranks.")),
      steps_failed(counter(registry, "gradsync_steps_failed_total", "Step attempts that ended in an error.")),
      steps_clipped(
          counter(registry, "gradsync_steps_clipped_total", "Committed steps whose norm exceeded the threshold.")
      ),
      policies(registry),
      buckets_reduced(counter(registry, "gradsync_buckets_reduced_total", "Bucket reductions done.")),
      bucket_bytes(counter(registry, "gradsync_bucket_bytes_total", "Bytes of one rank's gradients reduced.")),
      wire_bytes(counter(
          registry,
          "gradsync_wire_bytes_total",
          "Bytes of gradients sent to and received from other nodes, by finished reductions."
      )),
      collectives(counter(
          registry, "gradsync_collectives_total", "Collectives of NCCL that added up gradients, by finished reductions."
      )),
      nonfinite_values(
          counter(registry, "gradsync_nonfinite_values_total", "Non-finite gradient values found after reduction.")
      ),
      divergences(
          counter(registry, "gradsync_divergences_total", "Tensors found to differ between ranks that must be equal.")
      ),
      ranks_lost(counter(registry, "gradsync_ranks_lost_total", "Ranks that died or went away inside a job.")),
      reduce_seconds(counter(registry, "gradsync_reduce_seconds_total", "Lane time spent reducing buckets.")),
      step_seconds(histogram(registry, "gradsync_step_seconds", "First finish call until the commit.")),
      step_wait_seconds(histogram(registry, "gradsync_step_wait_seconds", "First finish call until the last.")),
      job_gauges(registry, most_job_gauges) {}

}  // namespace gradsync::engine
