#pragma once
// The functions of NCCL that the experiments use, found by name: in this program, in GRADSYNC_NCCL or on the loader's
// path. nccl.h is not needed: a machine with torch has the library, and mostly not the header.

#include <climits>

#include <cstddef>
#include <cuda_runtime_api.h>
#include <string>

namespace gradsync::experiments {

struct NcclUniqueId {
  char bytes[128];
};

// ncclResult_t, ncclDataType_t and ncclRedOp_t by value.
constexpr int kNcclSuccess = 0;
constexpr int kNcclInProgress = 7;
constexpr int kNcclFloat32 = 7;
constexpr int kNcclSum = 0;

/// ncclConfig_t as of 2.18; a later library reads as many bytes as `size` says and fills in the rest.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = INT_MIN;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

struct NcclLibrary {
  int (*get_version)(int*);
  int (*get_unique_id)(NcclUniqueId*);
  int (*init_rank_config)(void** communicator, int ranks, NcclUniqueId id, int rank, NcclConfig*);
  int (*all_reduce)(const void* from, void* to, std::size_t count, int type, int operation, void*, cudaStream_t);
  int (*get_async_error)(void* communicator, int* result);
  int (*finalize)(void* communicator);
  int (*destroy)(void* communicator);
  int (*abort)(void* communicator);
  const char* (*last_error)(void* communicator);
  const char* (*error_string)(int result);
};

/// Throws when there is none.
const NcclLibrary& nccl();

/// Why there is none, or nothing. Loads it.
std::string missing_nccl();

}  // namespace gradsync::experiments
