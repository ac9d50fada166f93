#pragma once
// Whether a process may take a rank of a job, as a function of what is known of both. Pure; any thread.

#include "base/error.hpp"
#include "engine/types.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::engine {

/// What the first process of a job said of it; all others have to agree.
struct JobIdentity {
  std::string name;
  std::uint32_t uid = 0;
  std::int64_t restart_count = 0;
  std::int64_t world_size = 1;
  std::vector<plan::Mesh> meshes;
  std::int64_t local_world_size = 1;
  std::string coordinator = {};
};

/// The process that holds a rank.
struct RankHolder {
  SessionId session = 0;  ///< 0: none does
  std::string client_id;
  std::int64_t pid = 0;
};

/// The holder comes back on a new connection.
[[nodiscard]] bool resumes(const RankHolder& holder, const AttachRequest& request);

/// Errors: Superseded, JobMismatch, RankInUse, each with the field, both values and the way out.
/// What can be said of a request by itself. `over_nodes`: this daemon takes jobs that have ranks on other nodes.
[[nodiscard]] Result<void> check_attach(const AttachRequest& request, std::int64_t largest_world, bool over_nodes);

/// `full`: as many other ranks as this node has hold a seat.
[[nodiscard]] Result<void> may_attach(
    const JobIdentity& job, const RankHolder& holder, bool full, const AttachRequest& request
);

}  // namespace gradsync::engine
