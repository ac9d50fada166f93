#include "engine/report/job_gauges.hpp"

namespace gradsync::engine {

namespace {

prometheus::Labels labels_of(const std::pair<std::uint32_t, std::string>& key) {
  return {{"job", key.second}, {"uid", std::to_string(key.first)}};
}

prometheus::Family<prometheus::Gauge>* family(prometheus::Registry& registry, const char* name, const char* help) {
  return &prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

}  // namespace

JobGauge::JobGauge(JobGauges& all, Key key)
    : all_(all),
      key_(std::move(key)),
      norm_(all.norms_->Add(labels_of(key_))),
      threshold_(all.thresholds_->Add(labels_of(key_))) {}

JobGauge::~JobGauge() {
  all_.norms_->Remove(&norm_);
  all_.thresholds_->Remove(&threshold_);
  all_.shown_.erase(key_);
}

void JobGauge::set(double norm, double threshold) {
  norm_.Set(norm);
  threshold_.Set(threshold);
}

JobGauges::JobGauges(prometheus::Registry& registry, std::int64_t most) : most_(static_cast<std::size_t>(most)) {
  if (most_ > 0) {
    norms_ = family(registry, "gradsync_job_grad_norm", "Norm of the last step of a job, before clipping.");
    thresholds_ = family(registry, "gradsync_job_grad_clip_threshold", "Threshold of the last step of a job.");
  }
}

std::unique_ptr<JobGauge> JobGauges::of(std::uint32_t uid, const std::string& job) {
  if (shown_.size() >= most_ || !shown_.emplace(uid, job).second) {
    return nullptr;
  }
  return std::unique_ptr<JobGauge>(new JobGauge(*this, {uid, job}));
}

}  // namespace gradsync::engine
