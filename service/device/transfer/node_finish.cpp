#include "device/transfer/node_finish.hpp"

#include "base/clock.hpp"
#include "device/device_error.hpp"
#include "device/step/step_finish.hpp"
#include "device/step/tensor_findings.hpp"
#include "device/transfer/node_contributions.hpp"
#include "device/transfer/node_copies.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace gradsync::device {

namespace {

class NodeFinish {
 public:
  explicit NodeFinish(LoadedPlan& plan) : plan_(plan), nodes_(*plan.nodes()) {}

  RawStep cells() {
    NormTotals& totals = plan_.attempt().totals;
    totals.clear();
    for (std::uint32_t index = 0; index < plan_.layout().tensors.size(); ++index) {
      const LaneTensor& tensor = plan_.layout().tensors[index];
      if (tensor.parts == 0) {
        continue;
      }
      TensorSum sum = plan_.attempt().tensors[index].sum;
      found_ = found_ || sum.nonfinite != 0;
      sum.nonfinite += nodes_.attempt.replica_nonfinite[index].load(std::memory_order_relaxed);
      sum.nan += nodes_.attempt.replica_nan[index].load(std::memory_order_relaxed);
      totals.add(sum, tensor.clip_group, tensor.layer);
    }
    RawStep raw;
    raw.cells = totals.cells(elements_here() + elements_of_blocks());
    return raw;
  }

  StepMath findings() {
    StepMath math;
    const auto has_findings = [](const BucketState& bucket) { return bucket.has_findings(); };
    if (!found_ && std::ranges::none_of(plan_.attempt().buckets, has_findings)) {
      return math;
    }
    for (std::uint32_t index = 0; index < plan_.layout().tensors.size(); ++index) {
      const TensorState& state = plan_.attempt().tensors[index];
      if (state.absent && nodes_.has_input[index]) {
        math.absent.push_back(index);
      }
      math.nonfinite_total += state.sum.nonfinite;
      if (state.sum.nonfinite != 0 || plan_.attempt().flagged[index].load(std::memory_order_relaxed) != 0) {
        report_ranks(plan_, index, math);
      }
      if (state.incomplete) {
        report_empty(index, math);
      }
    }
    // Those of which nothing is known to be there may be absent on every node, and must not take the place of others.
    uncertain_.resize(std::min(uncertain_.size(), kMaxFindings - math.missing.size()));
    std::ranges::move(uncertain_, std::back_inserter(math.missing));
    std::ranges::sort(math.missing, {}, &MissingFinding::tensor);
    return math;
  }

 private:
  /// In parts that are counted by a sum of this node alone.
  [[nodiscard]] std::uint64_t elements_here() const {
    std::uint64_t elements = 0;
    for (std::uint32_t part = 0; part < plan_.layout().parts.size(); ++part) {
      const LanePart& of = plan_.layout().parts[part];
      const std::size_t counted = plan_.attempt().parts[part].counted_sum;
      const bool here = counted < plan_.sums_of(of).size() && nodes_.is_here(of, counted);
      elements += here && known_of(plan_, part, counted) == SumKnown::Contributed ? of.elements : 0;
    }
    return elements;
  }

  [[nodiscard]] std::uint64_t elements_of_blocks() const {
    std::uint64_t elements = 0;
    for (const ChunkRange& range : nodes_.counted) {
      for (std::uint32_t at = range.begin; at < range.end; ++at) {
        const Chunk& chunk = plan_.table().chunks[at];
        elements += known_of(plan_, chunk.part, 0) == SumKnown::Contributed ? chunk.count() : 0;
      }
    }
    return elements;
  }

  void report_empty(std::uint32_t index, StepMath& math) {
    const LaneTensor& tensor = plan_.layout().tensors[index];
    MissingFinding missing{index, {}};
    bool some = false;
    for (std::uint32_t part = tensor.first_part; part < tensor.first_part + tensor.parts; ++part) {
      const LanePart& of = plan_.layout().parts[part];
      for (std::size_t sum = 0; of.elements != 0 && sum < plan_.sums_of(of).size(); ++sum) {
        const SumKnown known = known_of(plan_, part, sum);
        some = some || known == SumKnown::Contributed;
        for (const LaneMember& member : plan_.sums_of(of)[sum].destinations) {
          if (known == SumKnown::Empty) {
            missing.ranks.push_back(member.rank);
          }
        }
      }
    }
    std::ranges::sort(missing.ranks);
    missing.ranks.erase(std::unique(missing.ranks.begin(), missing.ranks.end()), missing.ranks.end());
    std::vector<MissingFinding>& findings = some ? math.missing : uncertain_;
    if (!missing.ranks.empty() && findings.size() < kMaxFindings) {
      findings.push_back(std::move(missing));
    }
  }

  LoadedPlan& plan_;
  const NodePlan& nodes_;
  bool found_ = false;                     ///< a value that is not finite
  std::vector<MissingFinding> uncertain_;  ///< of tensors that this node knows no contribution to
};

}  // namespace

Finished finish_node(LoadedPlan& plan, const FinishStep& command) {
  check_reduced(plan, command.tag);
  if (!command.raw || !command.rules.empty() || command.apply) {
    throw DeviceError(
        "some ranks of the plan are on other nodes: a raw finish, without clip rules, says what this node has"
    );
  }
  const auto start = std::chrono::steady_clock::now();
  NodeFinish finish(plan);
  Finished finished{command.plan, command.tag, {}, nullptr};
  RawStep raw = finish.cells();
  raw.class_hashes = hash_copies(plan);
  finished.math = finish.findings();
  finished.raw = std::make_shared<const RawStep>(std::move(raw));
  finished.math.norm_s = seconds(std::chrono::steady_clock::now() - start);
  plan.attempt().measured = command.tag;
  return finished;
}

}  // namespace gradsync::device
