#include "plan/clip/clip_groups.hpp"

#include "base/text/hash.hpp"
#include "plan/interrupt.hpp"

#include <unordered_map>

namespace gradsync::plan {

void plan_clip_groups(Plan& plan) {
  std::unordered_map<std::string, std::uint32_t, KeyedHash> numbers;
  const auto number_of = [&](const std::string& name, const ClipOptions& clip) {
    const auto [number, fresh] = numbers.emplace(name, static_cast<std::uint32_t>(plan.clip_groups.size()));
    if (fresh) {
      plan.clip_groups.push_back({name, clip, {}, DType::Float32});
    }
    return number->second;
  };
  for (const ClipGroupOptions& options : plan.options.clip) {
    number_of(options.group, options.clip);
  }
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    interruption_point();
    PlannedTensor& tensor = plan.tensors[i];
    tensor.clip_group = number_of(tensor.declaration.clip_group, ClipOptions{});
    ClipGroup& group = plan.clip_groups[tensor.clip_group];
    group.tensors.push_back(i);
    if (tensor.declaration.dtype == DType::Float64) {
      group.norm_dtype = DType::Float64;
    }
  }
  if (plan.clip_groups.empty(
      )) {  // no rank holds a tensor and no group is listed: this one reports the norm of nothing
    number_of(TensorDeclaration{}.clip_group, ClipOptions{});
  }
}

}  // namespace gradsync::plan
