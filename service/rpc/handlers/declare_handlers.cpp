#include "base/text/text.hpp"
#include "plan/explain.hpp"
#include "plan/memory.hpp"
#include "rpc/handlers/handlers.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::rpc {

namespace {

std::uint64_t memory_of(const WireTensor& tensor) {
  return plan::memory_of(tensor.declaration) + (tensor.weight_fingerprint ? tensor.weight_fingerprint->capacity() : 0);
}

/// The memory of a declaration counts from its first page until its rank leaves or declares anew.
Result<void> hold_page(Core& core, const Caller& caller, const DeclareParams& params) {
  std::uint64_t bytes = 0;
  for (const WireTensor& tensor : params.tensors) {
    bytes += memory_of(tensor);
  }
  FairBudget& budget = core.engine.declared_bytes();
  const Holder holder{caller.peer.uid, caller.peer.pid};
  if (const auto refused = budget.refuse(holder, bytes)) {
    return make_error(
        ErrorCode::LimitExceeded,
        fmt::format(
            "declarations of {} hold {}, this page {} more; at most {}",
            refused->whose,
            human_bytes(refused->held),
            human_bytes(bytes),
            human_bytes(refused->most)
        ),
        "a declaration counts from its first page until its rank leaves: end what is not needed, or declare fewer "
        "tensors or shorter names"
    );
  }
  std::shared_ptr<FairBudget::Share>& held = caller.connection->declaring.held;
  if (held == nullptr) {
    held = std::make_shared<FairBudget::Share>(budget, holder, bytes);
  } else {
    held->grow(bytes);
  }
  return {};
}

/// Appends a page. Errors: InvalidParams, LimitExceeded.
Result<void> add_page(Core& core, const Caller& caller, DeclareParams& params) {
  const RpcLimits& limits = core.limits;
  Declaring& declaring = caller.connection->declaring;
  if (params.page == 0) {
    declaring = {};
    declaring.buffer = params.buffer;
    declaring.declaration.options = std::move(params.options).value_or(plan::DeclareOptions{});
    declaring.declaration.measured_by = std::move(params.measured_by).value_or("");
  } else if (params.page != declaring.next_page) {
    return invalid_params(
        "page", fmt::format("page is {}; expected {}", params.page, declaring.next_page), "page 0 begins anew"
    );
  } else if (params.options) {
    return invalid_params("options", "options belong to page 0");
  } else if (params.buffer != declaring.buffer) {
    return invalid_params("buffer", fmt::format("buffer is {}; page 0 said {}", params.buffer, declaring.buffer));
  }
  std::vector<plan::TensorDeclaration>& tensors = declaring.declaration.tensors.own();
  const std::size_t total = tensors.size() + params.tensors.size();
  if (total > static_cast<std::size_t>(limits.engine.tensors)) {
    return make_error(
        ErrorCode::LimitExceeded,
        fmt::format("{} tensors; at most {} in one declaration (limits.tensors)", total, limits.engine.tensors)
    );
  }
  if (static_cast<std::size_t>(params.page) >= limits.declare_pages) {
    return make_error(
        ErrorCode::LimitExceeded,
        fmt::format("page {}; a declaration has at most {} pages", params.page, limits.declare_pages),
        "put more tensors on a page"
    );
  }
  if (Result<void> held = hold_page(core, caller, params); !held) {
    return held;
  }
  // A page moves what came before only where the room doubles, however many pages there are.
  if (total > tensors.capacity()) {
    tensors.reserve(std::max(total, 2 * tensors.capacity()));
  }
  for (WireTensor& tensor : params.tensors) {
    append(declaring.declaration, std::move(tensor));
  }
  declaring.next_page = params.page + 1;
  return {};
}

std::optional<engine::StepKey> step_key(const std::optional<EarlierAttempt>& attempt) {
  return attempt ? std::optional<engine::StepKey>({attempt->epoch, attempt->attempt}) : std::nullopt;
}

DeclareAnswer answer_of(const engine::DeclareResult& result) {
  const plan::Plan& plan = *result.plan;
  DeclareAnswer answer;
  answer.epoch = result.epoch;
  answer.attempt = result.attempt;
  answer.plan_digest = plan.digest;
  answer.arena_bytes = result.arena_bytes;
  answer.clip_groups.emplace();
  for (const plan::ClipGroup& group : plan.clip_groups) {
    answer.clip_groups->push_back(group.name);
  }
  if (result.record) {
    answer.record = WireRecord{result.record->token, result.record->size_bytes};
  }
  answer.check = result.check;
  answer.verdict = result.verdict;
  if (plan.options.data_path == plan::DataPath::Stats) {
    const bool wide = std::ranges::any_of(plan.clip_groups, [](const plan::ClipGroup& group) {
      return group.norm_dtype == plan::DType::Float64;
    });
    answer.norm_dtype = wide ? plan::DType::Float64 : plan::DType::Float32;
    return answer;
  }
  const plan::ArenaLayout& layout = plan.layout(result.rank);
  answer.buckets.emplace();
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    const std::uint64_t offset = layout.bucket_offsets[i];
    answer.buckets->push_back(
        {std::string(plan::name_of(plan.buckets[i].dtype)),
         offset,
         layout.bucket_offsets[i + 1] - offset,
         layout.bucket_rows[i]}
    );
  }
  if (layout.tensors.size() <= kMostOffsets) {
    answer.offsets = layout.input_offsets;
  }
  return answer;
}

/// In the arena of its lowest holder.
std::uint64_t offset_of(const plan::Plan& plan, const plan::PlannedTensor& tensor) {
  const plan::Holding& holder = tensor.holdings.front();
  return plan.layout(holder.rank).input_offsets[holder.row];
}

ExplainedTensor explained(const plan::Plan& plan, std::uint32_t index) {
  const plan::PlannedTensor& tensor = plan.tensors[index];
  return ExplainedTensor{
      tensor.declaration.name,
      tensor.declaration.shape,
      tensor.declaration.dtype,
      tensor.declaration.mesh,
      tensor.bucket,
      plan.options.data_path == plan::DataPath::Stats ? 0 : offset_of(plan, tensor),
      tensor.replication,
      tensor.boxes,
      tensor.counted_elements,
      tensor.norm_group,
      tensor.clip_group,
      plan::stages_of(plan, index),
      plan::explain_tensor(plan, index),
  };
}

void add_groups(const plan::Plan& plan, ExplainAnswer& answer) {
  for (std::uint32_t i = 0; i < plan.buckets.size(); ++i) {
    const plan::Bucket& bucket = plan.buckets[i];
    answer.buckets.push_back(
        {i,
         bucket.dtype,
         bucket.size_bytes,
         bucket.axes,
         bucket.groups,
         bucket.divisor,
         bucket.tensors.size(),
         bucket.stages,
         bucket.stage_bytes}
    );
  }
  for (std::size_t i = 0; i < plan.norm_groups.size(); ++i) {
    const plan::NormGroup& group = plan.norm_groups[i];
    answer.norm_groups.push_back({group.mesh, group.axes, group.tensors.size(), plan::explain_norm_group(plan, i)});
  }
  for (const plan::ScalarCollective& collective : plan.scalar_collectives) {
    answer.scalar_collectives.push_back({collective.mesh, collective.axes, collective.groups, collective.length});
  }
  for (std::size_t i = 0; i < plan.clip_groups.size(); ++i) {
    const plan::ClipGroup& group = plan.clip_groups[i];
    answer.clip_groups.push_back(
        {group.name, group.clip.max_norm, group.tensors.size(), plan::explain_clip_group(plan, i)}
    );
  }
}

}  // namespace

void gradients_declare(Core& core, Caller& caller, DeclareParams params, Answer<DeclareAnswer> answer) {
  Declaring& declaring = caller.connection->declaring;
  if (const Result<void> added = add_page(core, caller, params); !added) {
    declaring = {};
    declaration_refused(core, caller, added.error());
    answer(added.error());
    return;
  }
  if (!params.last) {
    DeclareAnswer received;
    received.received = declaring.declaration.tensors.size();
    answer(std::move(received));
    return;
  }
  Declaring complete = std::exchange(declaring, {});
  engine::DeclareRequest request;
  request.declaration = std::move(complete.declaration);
  request.buffer = complete.buffer;
  request.held = std::move(complete.held);
  request.comes_back = params.comes_back;
  request.last_done = step_key(params.last_done);
  request.doubt = step_key(params.doubt);
  if (params.timeout_ms) {
    request.timeout = Milliseconds(*params.timeout_ms);
  }
  core.engine.declare(
      caller.connection->session,
      std::move(request),
      [answer = std::move(answer)](const Result<engine::DeclareResult>& result) {
        if (result) {
          answer(answer_of(*result));
        } else {
          answer(result.error());
        }
      }
  );
}

void declaration_refused(Core& core, Caller& caller, const Error& refusal) {
  core.engine.declaration_refused(caller.connection->session, refusal);
}

void plan_explain(Core& core, Caller& caller, ExplainParams params, Answer<ExplainAnswer> answer) {
  const auto found = core.engine.plan_of(Core::visible_uid(caller.peer), params.job);
  if (!found) {
    answer(found.error());
    return;
  }
  const plan::Plan& plan = **found;
  ExplainAnswer page{
      std::move(params.job), plan.digest, plan.world_size, plan.tensors.size(), params.offset, {}, {}, {}, {}, {}};
  const std::uint64_t left = plan.tensors.size() - std::min<std::uint64_t>(params.offset, plan.tensors.size());
  const std::uint64_t end = params.offset + std::min(static_cast<std::uint64_t>(params.limit), left);
  for (std::uint64_t i = params.offset; i < end; ++i) {
    page.tensors.push_back(explained(plan, static_cast<std::uint32_t>(i)));
  }
  add_groups(plan, page);
  answer(std::move(page));
}

}  // namespace gradsync::rpc
