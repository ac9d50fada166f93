#include "engine/plan/planner.hpp"

#include "base/older_runtime.hpp"
#include "base/text/hash.hpp"
#include "base/text/text.hpp"
#include "base/thread_name.hpp"
#include "engine/peers/declarations/content_hash.hpp"
#include "engine/peers/sums/node_communicators.hpp"
#include "engine/peers/sums/node_plan.hpp"
#include "engine/plan/plan_collectives.hpp"
#include "plan/check/words.hpp"
#include "plan/interrupt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace gradsync::engine {

namespace {

/// Each report names every clip group, every bucket, and ranks where something was found: all of that has to fit.
Result<void> check_report_size(const PreparedPlan& prepared, const PlanRequest& request) {
  if (prepared.encoded_bytes <= request.encoded_bytes) {
    return {};
  }
  const StepReport largest = largest_report(*prepared.plan, prepared.constants);
  const std::size_t least = request.encode_report(largest, 0).size();
  if (least <= request.encoded_bytes) {
    return {};
  }
  return make_error(
      ErrorCode::InvalidDeclaration,
      fmt::format(
          "the report of a step may have {}, a message at most {}: there are {} clip groups and {} buckets",
          human_bytes(least),
          human_bytes(request.encoded_bytes),
          prepared.plan->clip_groups.size(),
          prepared.plan->buckets.size()
      ),
      "declare fewer clip groups, shorter names or larger buckets, or raise limits.message_bytes of the daemon"
  );
}

DeclaredContent content_of(const plan::RankDeclaration& declared) {
  std::string weights;
  for (const std::string& fingerprint : declared.weight_fingerprints) {
    weights += fingerprint;
    weights += '\n';
  }
  return {content_hash_of(declared), hash64(weights)};
}

/// One by itself, before all of them are merged.
PlanOutcome admit(const PlanRequest& request) {
  const plan::RankDeclaration& declared = *request.by_rank[0];
  Result<plan::TensorList> tensors = request.pool->admit(declared);
  if (!tensors) {
    return {request.ticket, tensors.error()};
  }
  PlanOutcome outcome{request.ticket, std::unique_ptr<PreparedPlan>()};
  if (tensors->identity() != declared.tensors.identity()) {
    const auto sharing = std::make_shared<plan::RankDeclaration>(declared);
    sharing->tensors = std::move(*tensors);
    outcome.sharing = {sharing, plan::memory_beside_tensors(*sharing)};
  }
  if (request.name_content) {
    outcome.content = content_of(declared);
  }
  return outcome;
}

/// What ranks declared, whole again: over several nodes fingerprints of weights come apart, and what other nodes sent
/// was not looked at yet. Each that differs is made and checked once.
class ContentsOfNodes {
 public:
  explicit ContentsOfNodes(const PlanRequest& request) : request_(request) {}

  [[nodiscard]] Result<const plan::RankDeclaration*> of(std::size_t rank) {
    const plan::RankDeclaration* const bare = request_.by_rank[rank].get();
    if (request_.node_of_rank.empty()) {
      return bare;
    }
    const WeightFingerprints* const weights = request_.weights[rank].get();
    const auto [at, added] = whole_.try_emplace({bare, weights});
    if (added) {
      if (weights != nullptr && weights->size() != bare->tensors.size()) {
        return make_error(
            ErrorCode::InvalidDeclaration,
            fmt::format(
                "rank {} has {} tensors and {} fingerprints of weights", rank, bare->tensors.size(), weights->size()
            ),
            "declare one fingerprint for each tensor, or none"
        );
      }
      if (Result<void> valid = plan::validate_declaration(*bare, request_.meshes); !valid) {
        return valid.error();
      }
      at->second = *bare;
      at->second.weight_fingerprints = weights == nullptr ? WeightFingerprints() : *weights;
    }
    return &at->second;
  }

 private:
  const PlanRequest& request_;
  std::map<std::pair<const plan::RankDeclaration*, const WeightFingerprints*>, plan::RankDeclaration> whole_;
};

/// Data path arena: says what travels, for each site of this node.
std::optional<Error> add_sites(const PlanRequest& request, PreparedPlan& prepared) {
  device::LaneNodes& first = std::get<device::LanePlan>(prepared.layout).nodes;
  first = lane_nodes_of(*prepared.plan, *prepared.comparison, prepared.shares.front().site);
  prepared.linked = linked_nodes_of(first);
  for (std::size_t other = 1; other < prepared.shares.size(); ++other) {
    prepared.other_sites.push_back(at_site(first, *prepared.comparison, prepared.shares[other].site));
  }
  const bool by_nccl = request.cpu_collectives || lies_on_gpu(prepared);
  const plan::CollectivesByBucket collectives = by_nccl ? collectives_by_bucket(first) : plan::CollectivesByBucket();
  const auto add = [&](device::LaneNodes& nodes) {
    std::optional<Error> refusal = by_nccl ? use_collectives(prepared, nodes, collectives) : std::nullopt;
    if (!refusal) {
      prepared.memory_bytes += memory_of(nodes);
      prepared.communicators.add(*prepared.plan, nodes, collectives);
    }
    return refusal;
  };
  std::optional<Error> refusal = add(first);
  for (std::size_t other = 0; other < prepared.other_sites.size() && !refusal; ++other) {
    refusal = add(prepared.other_sites[other]);
  }
  return refusal ? refusal : refuse_offers(prepared);
}

/// All nodes find the same here: it is of the one that says most.
std::optional<Error> refuse_ask_size(const PlanRequest& request, const PreparedPlan& prepared) {
  const AskSize largest = largest_ask(*prepared.plan, *prepared.comparison, request.node_of_rank);
  if (largest.bytes <= request.peer_bytes) {
    return std::nullopt;
  }
  return make_error(
      ErrorCode::LimitExceeded,
      fmt::format(
          "what a node{} may have {}, a message between daemons at most {}: there are {} layers, {} clip groups and {} "
          "tensors",
          largest.sites > 1 ? fmt::format(" says of a step for each of its {} GPUs", largest.sites) : " says of a step",
          human_bytes(largest.bytes),
          human_bytes(request.peer_bytes),
          prepared.comparison->layers,
          prepared.plan->clip_groups.size(),
          prepared.plan->tensors.size()
      ),
      "declare fewer layers or clip groups, or place the ranks of a node on fewer GPUs"
  );
}

/// Leaves of the layout what this node has of it, or says what of it travels.
std::optional<Error> cut_to_node(const PlanRequest& request, PreparedPlan& prepared) {
  prepared.comparison = std::make_shared<const Comparison>(comparison_of(*prepared.plan, sites_by_rank(request)));
  prepared.memory_bytes += memory_of(*prepared.comparison);
  if (std::optional<Error> refusal = refuse_ask_size(request, prepared)) {
    return refusal;
  }
  if (auto* const tables = std::get_if<device::StatsPlan>(&prepared.layout)) {
    *tables = stats_plan_of_node(std::move(*tables), *prepared.comparison, prepared.shares.front().site);
    return std::nullopt;
  }
  return add_sites(request, prepared);
}

/// What each lane of this node executes.
Result<std::vector<LaneShare>> shares_of(const PlanRequest& request, const plan::Plan& plan) {
  const bool over_nodes = !request.node_of_rank.empty();
  if (over_nodes && plan.options.data_path == plan::DataPath::Arena) {
    return shares_of_sites(request, plan);
  }
  Result<std::vector<LaneShare>> shares = project_plan(plan, request.lane_of_rank);
  if (over_nodes && shares) {
    const auto own = std::ranges::find(request.node_of_rank, request.node) - request.node_of_rank.begin();
    shares->front().site = sites_by_rank(request)[static_cast<std::size_t>(own)];
  }
  return shares;
}

}  // namespace

PlanOutcome run_planner(const PlanRequest& request) {
  if (request.pool != nullptr) {
    return admit(request);
  }
  std::vector<const plan::RankDeclaration*> by_rank;
  by_rank.reserve(request.by_rank.size());
  ContentsOfNodes contents(request);
  for (std::size_t rank = 0; rank < request.by_rank.size(); ++rank) {
    const Result<const plan::RankDeclaration*> declared = contents.of(rank);
    if (!declared) {
      return {request.ticket, declared.error()};
    }
    by_rank.push_back(*declared);
  }
  Result<plan::Plan> plan = plan::plan_job(by_rank, request.meshes, request.sizes);
  if (!plan) {
    return {request.ticket, plan.error()};
  }
  Result<std::vector<LaneShare>> shares = shares_of(request, *plan);
  if (!shares) {
    return {request.ticket, shares.error()};
  }
  auto prepared = std::make_unique<PreparedPlan>(std::move(*plan), request.encode_report);
  prepared->shares = std::move(*shares);
  if (!request.node_of_rank.empty()) {
    if (std::optional<Error> refusal = cut_to_node(request, *prepared)) {
      return {request.ticket, std::move(*refusal)};
    }
  }
  if (prepared->shares.size() > 1 && request.node_of_rank.empty()) {
    prepared->join = join_plan_of(std::get<device::LanePlan>(prepared->layout));
  }
  if (const Result<void> fits = check_report_size(*prepared, request); !fits) {
    return {request.ticket, fits.error()};
  }
  return {request.ticket, std::move(prepared)};
}

namespace {

/// Top of the thread: what is thrown (no memory, a defect) becomes the outcome.
PlanOutcome guarded(const PlanRequest& request) {
  try {
    return run_planner(request);
  } catch (const plan::Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    return {
        request.ticket,
        make_error(
            ErrorCode::InternalError, fmt::format("no plan was made: {}", error.what()), "see the daemon's log"
        )};
  }
}

}  // namespace

struct ThreadPlanner::State {
  /// The request that a thread executes.
  struct Work {
    std::uint64_t ticket = 0;  ///< 0: none
    JobKey job;
    std::atomic<bool> interrupted{false};
  };

  std::function<void(PlanOutcome)> sink;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<PlanRequest> queue;                    ///< guarded by mutex, as are the next three
  std::vector<std::shared_ptr<const void>> unused;  ///< to be freed
  std::array<Work, kThreads> work;
  bool stopping = false;
  std::vector<std::thread> threads;

  /// The first request of a job that no thread works for, and of a uid that leaves a thread to others.
  [[nodiscard]] std::deque<PlanRequest>::iterator next() {
    return std::find_if(queue.begin(), queue.end(), [this](const PlanRequest& request) {
      const auto of_its_job = [&](const Work& other) { return other.ticket != 0 && other.job == request.job; };
      const auto of_its_uid = [&](const Work& other) {
        return other.ticket != 0 && other.job.first == request.job.first;
      };
      return std::none_of(work.begin(), work.end(), of_its_job) &&
             std::count_if(work.begin(), work.end(), of_its_uid) < static_cast<std::ptrdiff_t>(kThreads - 1);
    });
  }

  void run(Work& mine) {
    name_this_thread("planner");
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [this] { return stopping || next() != queue.end() || !unused.empty(); });
      if (stopping) {
        return;
      }
      const auto at = next();
      if (at == queue.end()) {
        const auto freed_unlocked = std::exchange(unused, {});
        lock.unlock();
      } else {
        PlanRequest request = std::move(*at);
        queue.erase(at);
        mine.ticket = request.ticket;
        mine.job = request.job;
        mine.interrupted = false;
        lock.unlock();
        execute(request, mine);
      }
      lock.lock();
      mine.ticket = 0;
      wake.notify_one();  // the next request of the same job
    }
  }

  void execute(const PlanRequest& request, const Work& mine) const {
    try {
      const plan::Interruptible interruptible(mine.interrupted);
      sink(guarded(request));
    } catch (const plan::Interrupted&) {
      return;  // nobody waits for it
    }
  }

  void free(std::shared_ptr<const void> value) noexcept {
    try {
      const std::lock_guard lock(mutex);
      unused.push_back(std::move(value));
    } catch (const std::bad_alloc&) {
      return;  // freed here
    }
    wake.notify_one();
  }
};

ThreadPlanner::ThreadPlanner(std::function<void(PlanOutcome)> sink) : state_(std::make_shared<State>()) {
  state_->sink = std::move(sink);
  for (State::Work& work : state_->work) {
    state_->threads.emplace_back([state = state_.get(), &work] { state->run(work); });
  }
}

ThreadPlanner::~ThreadPlanner() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    for (State::Work& work : state_->work) {
      work.interrupted = true;
    }
  }
  state_->wake.notify_all();
  for (std::thread& thread : state_->threads) {
    thread.join();
  }
  state_->queue.clear();  // their declarations lead back to the state
}

void ThreadPlanner::submit(PlanRequest request) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue.push_back(std::move(request));
  }
  state_->wake.notify_one();
}

void ThreadPlanner::withdraw(std::uint64_t ticket) {
  std::deque<PlanRequest> dropped;  // its declarations lead back to the state: freed without the lock
  const std::lock_guard lock(state_->mutex);
  for (State::Work& work : state_->work) {
    if (work.ticket == ticket) {
      work.interrupted = true;
    }
  }
  const auto at = std::find_if(state_->queue.begin(), state_->queue.end(), [&](const PlanRequest& request) {
    return request.ticket == ticket;
  });
  if (at != state_->queue.end()) {
    dropped.push_back(std::move(*at));
    state_->queue.erase(at);
  }
}

PlannerPort::Disposal ThreadPlanner::disposal() const {
  return [state = state_](std::shared_ptr<const void> value) { state->free(std::move(value)); };
}

}  // namespace gradsync::engine
