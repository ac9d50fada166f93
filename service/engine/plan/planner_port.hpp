#pragma once
// The way to the planner threads and back.

#include "base/error.hpp"
#include "base/shared_list.hpp"
#include "device/lane.hpp"
#include "engine/peers/peer_message.hpp"
#include "engine/plan/prepared_plan.hpp"
#include "engine/report/report.hpp"
#include "engine/types.hpp"
#include "plan/declaration_pool.hpp"
#include "plan/make_plan.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace gradsync::engine {

/// Work for a planner thread and its answer.
struct PlanRequest {
  std::uint64_t ticket = 0;
  JobKey job;  ///< which job asks: no job waits for the long plans of another
  SharedList<std::shared_ptr<const plan::RankDeclaration>> by_rank;
  std::vector<device::LaneId> lane_of_rank;  ///< which lane holds the rank's buffer; empty: the host lane holds all
  std::vector<plan::Mesh> meshes;
  std::int64_t world_size = 1;
  /// By rank, where ranks are on several nodes: the fingerprints of weights, which the declarations come without (null:
  /// none), and the node.
  SharedList<std::shared_ptr<const WeightFingerprints>> weights;
  std::vector<NodeNumber> node_of_rank;
  NodeNumber node = 0;                   ///< this one
  std::vector<SiteNumber> site_of_rank;  ///< empty: each node is one
  bool cpu_collectives = false;          ///< what travels of memory of CPUs does so by NCCL
  plan::BucketSizes sizes;
  std::shared_ptr<plan::DeclarationPool> pool;  ///< of the job: only admit the one declaration given
  bool name_content = false;                    ///< and name what is in it
  EncodeReport encode_report;                   ///< to measure the longest report; none: not measured
  std::size_t encoded_bytes = 1u << 20;         ///< no report may have more, with all left out that can be
  std::size_t peer_bytes = kPeerTextBytes;      ///< nor what a node says of a step to another
};

/// A declaration whose tensors another rank declared before: it holds those.
struct SharingDeclaration {
  std::shared_ptr<const plan::RankDeclaration> declaration;
  std::uint64_t memory_bytes = 0;  ///< beside the tensors
};

/// What other nodes know a declaration by.
struct DeclaredContent {
  ContentHash hash;
  std::uint64_t weights = 0;  ///< a hash of its fingerprints of weights
};

struct PlanOutcome {
  std::uint64_t ticket = 0;
  Result<std::unique_ptr<PreparedPlan>> plan;  ///< null where a declaration was admitted
  std::optional<SharingDeclaration> sharing = {};
  std::optional<DeclaredContent> content = {};
};

class PlannerPort {
 public:
  virtual ~PlannerPort() = default;
  virtual void submit(PlanRequest request) = 0;  ///< the outcome comes back through Engine::on_plan

  /// No outcome of the request is wanted any more. It may come all the same.
  virtual void withdraw(std::uint64_t ticket) = 0;

  /// Returns the same value, to be freed on another thread by its last owner: freeing the declarations of 100,000
  /// tensors takes tens of milliseconds. The value may outlive the port.
  template <typename T>
  [[nodiscard]] std::shared_ptr<const T> freed_elsewhere(std::shared_ptr<const T> value) const {
    const T* bare = value.get();
    return {bare, [free = disposal(), value = std::move(value)](const T*) mutable { free(std::move(value)); }};
  }

 protected:
  using Disposal = std::function<void(std::shared_ptr<const void>)>;  ///< any thread; does not throw
  [[nodiscard]] virtual Disposal disposal() const = 0;
};

}  // namespace gradsync::engine
