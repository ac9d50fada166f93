// Compiles only where device/nccl/nccl_abi.hpp says what nccl.h of the wheel does. The headers of CUDA that it includes
// are those of tests/fakes/libnccl/cuda, which have a stream and nothing else.

#include "device/nccl/nccl_abi.hpp"

#include <cstddef>
#include <nccl.h>
#include <type_traits>

namespace gradsync::device {
namespace {

static_assert(NCCL_VERSION_CODE == 22809);
static_assert(static_cast<int>(ncclSuccess) == static_cast<int>(NcclResult::Success));
static_assert(static_cast<int>(ncclUnhandledCudaError) == static_cast<int>(NcclResult::UnhandledCudaError));
static_assert(static_cast<int>(ncclSystemError) == static_cast<int>(NcclResult::SystemError));
static_assert(static_cast<int>(ncclInternalError) == static_cast<int>(NcclResult::InternalError));
static_assert(static_cast<int>(ncclInvalidArgument) == static_cast<int>(NcclResult::InvalidArgument));
static_assert(static_cast<int>(ncclInvalidUsage) == static_cast<int>(NcclResult::InvalidUsage));
static_assert(static_cast<int>(ncclRemoteError) == static_cast<int>(NcclResult::RemoteError));
static_assert(static_cast<int>(ncclInProgress) == static_cast<int>(NcclResult::InProgress));
static_assert(static_cast<int>(ncclFloat16) == static_cast<int>(NcclType::Float16));
static_assert(static_cast<int>(ncclFloat32) == static_cast<int>(NcclType::Float32));
static_assert(static_cast<int>(ncclFloat64) == static_cast<int>(NcclType::Float64));
static_assert(static_cast<int>(ncclBfloat16) == static_cast<int>(NcclType::BFloat16));
static_assert(static_cast<int>(ncclSum) == static_cast<int>(NcclOperation::Sum));
static_assert(sizeof(ncclResult_t) == sizeof(NcclResult) && sizeof(ncclDataType_t) == sizeof(NcclType));
static_assert(sizeof(ncclUniqueId) == sizeof(NcclUniqueId) && alignof(ncclUniqueId) == alignof(NcclUniqueId));

#define SAME_FIELD(theirs, ours)                                               \
  static_assert(offsetof(ncclConfig_t, theirs) == offsetof(NcclConfig, ours)); \
  static_assert(std::is_same_v<decltype(ncclConfig_t::theirs), decltype(NcclConfig::ours)>)

static_assert(sizeof(ncclConfig_t) == sizeof(NcclConfig));
SAME_FIELD(size, size);
SAME_FIELD(magic, magic);
SAME_FIELD(version, version);
SAME_FIELD(blocking, blocking);
SAME_FIELD(cgaClusterSize, cga_cluster_size);
SAME_FIELD(minCTAs, min_ctas);
SAME_FIELD(maxCTAs, max_ctas);
SAME_FIELD(netName, net_name);
SAME_FIELD(splitShare, split_share);
SAME_FIELD(trafficClass, traffic_class);
SAME_FIELD(commName, communicator_name);
SAME_FIELD(collnetEnable, collnet_enable);
SAME_FIELD(CTAPolicy, cta_policy);
SAME_FIELD(shrinkShare, shrink_share);
SAME_FIELD(nvlsCTAs, nvls_ctas);
SAME_FIELD(nChannelsPerNetPeer, channels_per_net_peer);
SAME_FIELD(nvlinkCentricSched, nvlink_centric_scheduling);

#undef SAME_FIELD

/// Pointers to what only NCCL and CUDA know, and enumerations, become ours.
template <typename T>
struct Ours {
  using Type = T;
};

template <>
struct Ours<ncclResult_t> {
  using Type = NcclResult;
};

template <>
struct Ours<ncclResult_t*> {
  using Type = NcclResult*;
};

template <>
struct Ours<ncclDataType_t> {
  using Type = NcclType;
};

template <>
struct Ours<ncclRedOp_t> {
  using Type = NcclOperation;
};

template <>
struct Ours<ncclUniqueId> {
  using Type = NcclUniqueId;
};

template <>
struct Ours<ncclUniqueId*> {
  using Type = NcclUniqueId*;
};

template <>
struct Ours<ncclConfig_t*> {
  using Type = NcclConfig*;
};

template <>
struct Ours<ncclComm_t> {
  using Type = NcclCommunicator*;
};

template <>
struct Ours<ncclComm_t*> {
  using Type = NcclCommunicator**;
};

template <>
struct Ours<cudaStream_t> {
  using Type = NcclStream*;
};

/// nccl.h says `const ncclComm_t`, which is a constant pointer, so that nothing of it is left in the type.
template <typename T>
using Loose = std::conditional_t<std::is_same_v<T, const NcclCommunicator*>, NcclCommunicator*, T>;

template <typename Theirs, typename OurFunction>
struct SameFunction : std::false_type {};

template <typename R, typename... A, typename S, typename... B>
struct SameFunction<R(A...), S(B...)> : std::bool_constant<
                                            std::is_same_v<typename Ours<R>::Type, S> && sizeof...(A) == sizeof...(B) &&
                                            std::is_same_v<void(typename Ours<A>::Type...), void(Loose<B>...)>> {};

static_assert(SameFunction<decltype(ncclGetVersion), nccl_function::GetVersion>::value);
static_assert(SameFunction<decltype(ncclGetUniqueId), nccl_function::GetUniqueId>::value);
static_assert(SameFunction<decltype(ncclCommInitRankConfig), nccl_function::CommInitRankConfig>::value);
static_assert(SameFunction<decltype(ncclCommAbort), nccl_function::CommAbort>::value);
static_assert(SameFunction<decltype(ncclCommGetAsyncError), nccl_function::CommGetAsyncError>::value);
static_assert(SameFunction<decltype(ncclCommCount), nccl_function::CommCount>::value);
static_assert(SameFunction<decltype(ncclCommUserRank), nccl_function::CommUserRank>::value);
static_assert(SameFunction<decltype(ncclGetErrorString), nccl_function::GetErrorString>::value);
static_assert(SameFunction<decltype(ncclGetLastError), nccl_function::GetLastError>::value);
static_assert(SameFunction<decltype(ncclAllReduce), nccl_function::AllReduce>::value);
static_assert(SameFunction<decltype(ncclReduceScatter), nccl_function::ReduceScatter>::value);
static_assert(SameFunction<decltype(ncclAllGather), nccl_function::AllGather>::value);
static_assert(SameFunction<decltype(ncclGroupStart), nccl_function::GroupStart>::value);
static_assert(SameFunction<decltype(ncclGroupEnd), nccl_function::GroupEnd>::value);

}  // namespace
}  // namespace gradsync::device
