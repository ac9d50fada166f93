#pragma once
// What of nccl.h this program uses, in its own words: the header itself needs the headers of CUDA. Values and layout
// are those of 2.28.9, and keep their meaning in every 2.x; tests/unit/device/nccl/nccl_header.cpp compiles them
// against the header.

#include <climits>

#include <array>
#include <cstddef>

namespace gradsync::device {

enum class NcclResult : int {
  Success = 0,
  UnhandledCudaError = 1,
  SystemError = 2,
  InternalError = 3,
  InvalidArgument = 4,
  InvalidUsage = 5,
  RemoteError = 6,
  InProgress = 7,
};

enum class NcclType : int { Float16 = 6, Float32 = 7, Float64 = 8, BFloat16 = 9 };

/// Others are not used: a factor would be rounded to the type of the elements (docs/adr/0037).
enum class NcclOperation : int { Sum = 0 };

struct NcclUniqueId {
  std::array<char, 128> bytes{};
  friend bool operator==(const NcclUniqueId&, const NcclUniqueId&) = default;
};

inline constexpr int kNcclUndefined = INT_MIN;

/// A library reads as many bytes as `size` says.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 22809;
  int blocking = kNcclUndefined;
  int cga_cluster_size = kNcclUndefined;
  int min_ctas = kNcclUndefined;
  int max_ctas = kNcclUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclUndefined;
  int traffic_class = kNcclUndefined;
  const char* communicator_name = nullptr;
  int collnet_enable = kNcclUndefined;
  int cta_policy = kNcclUndefined;
  int shrink_share = kNcclUndefined;
  int nvls_ctas = kNcclUndefined;
  int channels_per_net_peer = kNcclUndefined;
  int nvlink_centric_scheduling = kNcclUndefined;
};

struct NcclCommunicator;  ///< what `ncclComm_t` points to
struct NcclStream;        ///< what `cudaStream_t` points to

/// The functions by their types; each is named as in nccl.h, without its "nccl".
namespace nccl_function {

using GetVersion = NcclResult(int* version);
using GetUniqueId = NcclResult(NcclUniqueId* id);
using CommInitRankConfig =
    NcclResult(NcclCommunicator** communicator, int ranks, NcclUniqueId id, int rank, NcclConfig* config);
using CommAbort = NcclResult(NcclCommunicator* communicator);
using CommGetAsyncError = NcclResult(NcclCommunicator* communicator, NcclResult* error);
using CommCount = NcclResult(const NcclCommunicator* communicator, int* ranks);
using CommUserRank = NcclResult(const NcclCommunicator* communicator, int* rank);
using GetErrorString = const char*(NcclResult result);
using GetLastError = const char*(NcclCommunicator* communicator);
using AllReduce = NcclResult(
    const void* from,
    void* to,
    std::size_t elements,
    NcclType type,
    NcclOperation operation,
    NcclCommunicator* communicator,
    NcclStream* stream
);
/// `elements`: those that one rank gets.
using ReduceScatter = AllReduce;
/// `elements`: those that one rank sends.
using AllGather = NcclResult(
    const void* from, void* to, std::size_t elements, NcclType type, NcclCommunicator* communicator, NcclStream* stream
);
using GroupStart = NcclResult();
using GroupEnd = NcclResult();

}  // namespace nccl_function
}  // namespace gradsync::device
