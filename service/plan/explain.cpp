#include "plan/explain.hpp"

#include "plan/check/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <variant>
#include <vector>

namespace gradsync::plan {

namespace {

std::string tensors(std::size_t count) { return fmt::format("{} tensor{}", count, count == 1 ? "" : "s"); }

std::string reduction_words(const std::vector<Stage>& stages, double divisor) {
  std::string text;
  for (const Stage& stage : stages) {
    text += fmt::format(
        "{}over {} ({} ranks{})",
        text.empty() ? "summed " : ", then ",
        fmt::join(stage.axes, " and "),
        stage.size,
        stage.scatters ? ", each keeps its part" : ""
    );
  }
  if (divisor != 1) {
    text += fmt::format("{}divided by {}", text.empty() ? "" : ", then ", divisor);
  }
  return text.empty() ? "not reduced" : text;
}

std::string clip_words(const ClipOptions& clip, ClipMode mode) {
  if (std::holds_alternative<ObservePolicy>(clip.policy)) {
    return "the policy observes: their norm is measured and nothing is clipped";
  }
  if (clip != ClipOptions{clip.max_norm, clip.zero_rule}) {
    return fmt::format("by their norm and what is declared: {}", words_of(clip));
  }
  if (!clip.max_norm) {
    return "no max_norm, so their norm is measured and nothing is clipped";
  }
  if (*clip.max_norm == 0 && clip.zero_rule == ZeroRule::Off) {
    return "max_norm 0 means off, so their norm is measured and nothing is clipped";
  }
  if (*clip.max_norm == 0) {
    return "max_norm 0 means zero, so all of them become 0";
  }
  return mode == ClipMode::Strict
             ? fmt::format("max_norm / norm when their norm exceeds max_norm {}, else untouched", *clip.max_norm)
             : fmt::format("min(1, {} / (norm + 1e-6)), always multiplied, as torch does", *clip.max_norm);
}

/// By box, whether it has elements; empty boxes are neither counted nor compared.
std::vector<bool> filled_boxes(const PlannedTensor& tensor) {
  std::vector<bool> filled(static_cast<std::size_t>(tensor.boxes));
  for (const Holding& holding : tensor.holdings) {
    filled[holding.box] = filled[holding.box] || holding.elements != 0;
  }
  return filled;
}

std::string holding_words(const PlannedTensor& tensor) {
  const std::vector<bool> filled = filled_boxes(tensor);
  const auto parts = std::count(filled.begin(), filled.end(), true);
  if (parts == 0) {
    return "without elements";
  }
  const std::string copies =
      tensor.replication == 1 ? "1 rank" : fmt::format("{} ranks, equal on them", tensor.replication);
  return parts == 1 ? fmt::format("whole on {}", copies) : fmt::format("cut into {} parts, each on {}", parts, copies);
}

/// The sums over ranks that a group's numbers go through, in order.
std::string sum_words(const Plan& plan, const NormGroup& group) {
  std::string text;
  for (std::int32_t at = group.sum; at >= 0; at = plan.scalar_sums[static_cast<std::size_t>(at)].next) {
    const ScalarCollective& collective =
        plan.scalar_collectives[plan.scalar_sums[static_cast<std::size_t>(at)].collective];
    text += fmt::format(
        "{} {} ({} ranks)",
        text.empty() ? "summed over" : ", then over",
        fmt::join(collective.axes, "+"),
        collective.groups.front().size()
    );
  }
  return text.empty() ? "summed over no rank" : text;
}

std::string comparison_words(const PlannedTensor& copy) {
  const std::vector<bool> filled = filled_boxes(copy);
  const auto parts = std::count(filled.begin(), filled.end(), true);
  const auto compared = std::count_if(copy.counted_boxes.begin(), copy.counted_boxes.end(), [](std::int32_t box) {
    return box >= 0;  // which no empty one is
  });
  if (parts == 0) {
    return "nothing to compare with it";
  }
  return compared == 0 ? "cut otherwise, so not compared with it"
                       : fmt::format("{} of its {} parts compared with it", compared, parts);
}

std::string counting_words(const Plan& plan, std::uint32_t index) {
  const PlannedTensor& tensor = plan.tensors[index];
  const NormGroup& group = plan.norm_groups[tensor.norm_group];
  if (tensor.counted_as != index && plan.options.data_path == DataPath::Arena) {
    return fmt::format("tied to '{}': summed and counted with it", plan.tensors[tensor.counted_as].declaration.name);
  }
  if (tensor.counted_as != index) {
    return fmt::format(
        "tied to '{}' and counted there, clipped here too; {}",
        plan.tensors[tensor.counted_as].declaration.name,
        comparison_words(tensor)
    );
  }
  return fmt::format("its {} elements are counted once, {}", tensor.counted_elements, sum_words(plan, group));
}

}  // namespace

std::vector<Stage> stages_of(const Plan& plan, std::uint32_t tensor) {
  const TensorDeclaration& declaration = plan.tensors[tensor].declaration;
  return stages_of(declaration, plan.meshes[mesh_index(plan.meshes, declaration.mesh)]);
}

std::string explain_tensor(const Plan& plan, std::uint32_t index) {
  const PlannedTensor& tensor = plan.tensors[index];
  if (plan.options.data_path == DataPath::Stats) {
    return fmt::format("{}; {}", holding_words(tensor), counting_words(plan, index));
  }
  const std::string reduced = reduction_words(stages_of(plan, index), plan.buckets[tensor.bucket].divisor);
  if (tensor.replication < plan.world_size || tensor.counted_as != index) {
    return fmt::format("{}; after sync {}; {}", reduced, holding_words(tensor), counting_words(plan, index));
  }
  if (tensor.replication == 1) {
    return reduced + "; held by one rank, counted once";
  }
  return fmt::format("{}; equal on all {} ranks after sync, counted once", reduced, tensor.replication);
}

std::string explain_norm_group(const Plan& plan, std::size_t index) {
  const NormGroup& group = plan.norm_groups[index];
  if (group.sum >= 0) {
    return fmt::format(
        "{} of mesh '{}', spread over {}: each part is counted once, {}",
        tensors(group.tensors.size()),
        group.mesh,
        fmt::join(group.axes, " and "),
        sum_words(plan, group)
    );
  }
  return fmt::format(
      "{} of mesh '{}', whole on every rank{}: each is counted once and no rank has to be asked",
      tensors(group.tensors.size()),
      group.mesh,
      plan.options.data_path == DataPath::Arena ? " after sync" : ""
  );
}

std::string explain_clip_group(const Plan& plan, std::size_t index) {
  const ClipGroup& group = plan.clip_groups[index];
  const bool multiplies = group.clip.max_norm && *group.clip.max_norm > 0;
  return fmt::format(
      "{} of clip group '{}'{}{}",
      tensors(group.tensors.size()),
      group.name,
      multiplies ? " share one coefficient: " : ": ",
      clip_words(group.clip, plan.options.mode)
  );
}

}  // namespace gradsync::plan
