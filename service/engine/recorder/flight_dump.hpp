#pragma once
// What a flight recorder has of one job at one moment, by value, for another thread to write.

#include "base/error.hpp"
#include "engine/recorder/flight_record.hpp"
#include "engine/types.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::engine {

struct FlightDump {
  std::string job;
  std::uint32_t uid = 0;
  std::int64_t world_size = 1;
  std::int64_t restart_count = 0;
  std::string node;                      ///< its name, for other nodes; empty on a node that is alone
  NodeNumber node_number = 0;            ///< this one, in `node_of_rank`
  std::vector<NodeNumber> node_of_rank;  ///< of the last epoch that was gathered; empty: all ranks are here
  std::vector<std::int64_t> ranks;       ///< those of this node
  std::string plan_digest;
  std::string data_path;
  std::uint32_t plan_buckets = 0;
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::string waits_for;              ///< what the job waits for, in words
  std::vector<std::int64_t> missing;  ///< ranks here that the attempt under way waits for
  std::optional<Error> cause;         ///< the failure that it was taken for
  TimePoint taken;
  std::vector<AttemptRecord> attempts;  ///< the oldest first
  std::vector<BucketRecord> buckets;    ///< likewise
  std::vector<LinkRecord> links;        ///< likewise
  std::uint64_t first_bucket = 0;       ///< bucket records that came before these
};

}  // namespace gradsync::engine
