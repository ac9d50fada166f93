#include "fuzz/declared.hpp"

#include "engine/plan/prepared_plan.hpp"
#include "fuzz/fuzz.hpp"
#include "plan/declaration_pool.hpp"
#include "plan/explain.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace gradsync::fuzz {

namespace {

constexpr plan::BucketSizes kSizes{128, 256};

const plan::TensorDeclaration& declared(const std::vector<plan::RankDeclaration>& ranks, const plan::Holding& holding) {
  REQUIRE(holding.rank < ranks.size());
  REQUIRE(holding.row < ranks[holding.rank].tensors.size());
  return ranks[holding.rank].tensors[holding.row];
}

/// Every row of every rank belongs to one tensor, and the boxes of a tensor are as many elements as it has.
void check_holdings(const plan::Plan& plan, const std::vector<plan::RankDeclaration>& ranks) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, int> rows;
  for (const plan::PlannedTensor& tensor : plan.tensors) {
    REQUIRE(!tensor.holdings.empty());
    REQUIRE(tensor.boxes * tensor.replication == static_cast<std::int64_t>(tensor.holdings.size()));
    std::map<std::uint32_t, std::uint64_t> boxes;
    for (const plan::Holding& holding : tensor.holdings) {
      REQUIRE(declared(ranks, holding).name == tensor.declaration.name);
      REQUIRE(++rows[std::pair(holding.rank, holding.row)] == 1);
      REQUIRE(boxes.emplace(holding.box, holding.elements).first->second == holding.elements);
    }
    REQUIRE(static_cast<std::int64_t>(boxes.size()) == tensor.boxes);
    std::uint64_t elements = 0;
    for (const auto& [box, held] : boxes) {
      elements += held;
    }
    REQUIRE(elements == static_cast<std::uint64_t>(plan::numel_of(tensor.declaration.shape)));
  }
  std::size_t all = 0;
  for (const plan::RankDeclaration& rank : ranks) {
    all += rank.tensors.size();
  }
  REQUIRE(rows.size() == all);
}

/// The clip set is everything; the norm set leaves out tied copies alone.
void check_sets(const plan::Plan& plan) {
  std::vector<int> clipped(plan.tensors.size());
  std::vector<int> counted(plan.tensors.size());
  for (const plan::ClipGroup& group : plan.clip_groups) {
    for (const std::uint32_t tensor : group.tensors) {
      ++clipped.at(tensor);
    }
  }
  for (const plan::NormGroup& group : plan.norm_groups) {
    for (const std::uint32_t tensor : group.tensors) {
      ++counted.at(tensor);
    }
  }
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const plan::PlannedTensor& tensor = plan.tensors[i];
    REQUIRE(clipped[i] == 1);
    REQUIRE(counted[i] == (tensor.counted_as == i ? 1 : 0));
    REQUIRE(tensor.counted_elements == (tensor.counted_as == i ? plan::numel_of(tensor.declaration.shape) : 0));
  }
}

/// Inputs of a rank do not overlap, and end inside the arena.
void check_layout(const plan::Plan& plan, const plan::RankDeclaration& rank, std::int64_t number) {
  const plan::ArenaLayout& layout = plan.layout(number);
  REQUIRE(layout.tensors.size() == rank.tensors.size());
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (std::size_t row = 0; row < rank.tensors.size(); ++row) {
    const plan::TensorDeclaration& tensor = rank.tensors[row];
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(plan::numel_of(tensor.local_shape)) * plan::size_of(tensor.dtype);
    REQUIRE(layout.input_offsets.at(row) % plan::kArenaAlignment == 0);
    REQUIRE(layout.output_offsets.at(row) <= layout.bytes());
    ranges.emplace_back(layout.input_offsets[row], bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t end = 0;
  for (const auto& [offset, bytes] : ranges) {
    REQUIRE(offset >= end);
    end = offset + bytes;
  }
  REQUIRE(end <= layout.bytes());
}

std::uint64_t held_by(
    const plan::Plan& plan,
    const std::vector<plan::RankDeclaration>& ranks,
    const plan::PlannedTensor& tensor,
    const plan::SumMember& member
) {
  const plan::PlannedTensor& source = member.copy == 0 ? tensor : plan.tensors.at(tensor.copies.at(member.copy - 1));
  for (const plan::Holding& holding : source.holdings) {
    if (holding.rank == member.rank) {
      return static_cast<std::uint64_t>(plan::numel_of(declared(ranks, holding).local_shape));
    }
  }
  const bool holds = false;
  REQUIRE(holds);
  return 0;
}

/// Parts are the tensor, once; what is added lies inside what every rank of the sum holds.
void check_parts(const plan::Plan& plan, const std::vector<plan::RankDeclaration>& ranks) {
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const plan::PlannedTensor& tensor = plan.tensors[i];
    std::uint64_t elements = 0;
    for (const plan::PlannedPart& part : tensor.parts) {
      std::uint64_t end = part.first + part.run;
      std::uint64_t length = part.run;
      for (const plan::Stride& stride : part.strides) {
        REQUIRE(stride.count > 0);
        end += (stride.count - 1) * stride.distance;
        length *= stride.count;
      }
      REQUIRE(length == part.elements || (part.elements == 0 && part.run == 0));
      REQUIRE((part.elements == 0) == (plan::numel_of(tensor.declaration.shape) == 0));
      elements += part.elements;
      REQUIRE(!plan.sums.at(part.sums).empty());
      for (const plan::RankSum& sum : plan.sums[part.sums]) {
        REQUIRE(!sum.sources.empty() && !sum.destinations.empty());
        for (const plan::SumMember& source : sum.sources) {
          REQUIRE(end <= held_by(plan, ranks, tensor, source));
        }
      }
    }
    REQUIRE(
        tensor.counted_as != i ? tensor.parts.empty()
                               : elements == static_cast<std::uint64_t>(plan::numel_of(tensor.declaration.shape))
    );
  }
}

void check_buckets(const plan::Plan& plan) {
  std::vector<int> launched(plan.tensors.size());
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    for (const std::uint32_t tensor : plan.buckets[i].tensors) {
      REQUIRE(plan.tensors.at(tensor).bucket == i);
      ++launched[tensor];
    }
  }
  REQUIRE(std::all_of(launched.begin(), launched.end(), [](int times) { return times == 1; }));
}

void explain(const plan::Plan& plan) {
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    REQUIRE(!plan::explain_tensor(plan, i).empty());
  }
  for (std::size_t i = 0; i < plan.norm_groups.size(); ++i) {
    REQUIRE(!plan::explain_norm_group(plan, i).empty());
  }
  for (std::size_t i = 0; i < plan.clip_groups.size(); ++i) {
    REQUIRE(!plan::explain_clip_group(plan, i).empty());
  }
}

/// Ranks that declare alike share their tensors, and the plan is the same.
void check_sharing(
    const plan::Plan& plan, std::vector<plan::RankDeclaration> ranks, const std::vector<plan::Mesh>& meshes
) {
  plan::DeclarationPool pool(meshes);
  std::vector<const plan::RankDeclaration*> by_rank;
  for (plan::RankDeclaration& rank : ranks) {
    const Result<plan::TensorList> tensors = pool.admit(rank);
    REQUIRE(tensors.has_value() && *tensors == rank.tensors);
    rank.tensors = *tensors;
    by_rank.push_back(&rank);
  }
  const Result<plan::Plan> shared = plan::plan_job(by_rank, meshes, kSizes);
  REQUIRE(shared.has_value() && shared->digest == plan.digest && shared->layouts == plan.layouts);
  REQUIRE(shared->layout_of == plan.layout_of);
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    REQUIRE(shared->tensors[i].holdings == plan.tensors[i].holdings);
  }
}

}  // namespace

bool check_declared(const std::vector<plan::RankDeclaration>& ranks, const std::vector<plan::Mesh>& meshes) {
  std::vector<const plan::RankDeclaration*> by_rank;
  for (const plan::RankDeclaration& rank : ranks) {
    if (const Result<void> valid = plan::validate_declaration(rank, meshes); !valid) {
      REQUIRE(!valid.error().message.empty());
      return false;
    }
    by_rank.push_back(&rank);
  }
  Result<plan::Plan> plan = plan::plan_job(by_rank, meshes, kSizes);
  const Result<plan::Plan> again = plan::plan_job(by_rank, meshes, kSizes);
  REQUIRE(plan.has_value() == again.has_value());
  if (!plan) {
    REQUIRE(!plan.error().message.empty() && plan.error().message == again.error().message);
    return false;
  }
  REQUIRE(plan->digest == again->digest);
  check_sharing(*plan, ranks, meshes);
  check_holdings(*plan, ranks);
  check_sets(*plan);
  if (plan->options.data_path == plan::DataPath::Arena) {
    check_buckets(*plan);
    check_parts(*plan, ranks);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      check_layout(*plan, ranks[rank], static_cast<std::int64_t>(rank));
    }
  }
  explain(*plan);
  const engine::PreparedPlan prepared(std::move(*plan));
  REQUIRE(prepared.plan->tensors.size() == again->tensors.size());
  return true;
}

}  // namespace gradsync::fuzz
