#pragma once
// The standard `process_*` metrics, read from /proc when they are asked for.

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

namespace gradsync::app {

class ProcessMetrics final : public prometheus::Collectable {
 public:
  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace gradsync::app
