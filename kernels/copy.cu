// Pack, unpack and cast. Elements of a part are counted through its rows; both sides find their row by themselves.

#include "kernels/format.cuh"
#include "kernels/kernels.hpp"
#include "kernels/work_loop.cuh"

#include <type_traits>

namespace gradsync::kernels {

inline namespace of_copy {

struct CopyPass {
  const CopyItem* items;
  const CopyEntry* parts;
};

constexpr std::uint32_t kGroup = 8;  // elements a thread copies at a time: one or more whole vectors on each side
constexpr std::uint32_t kInFlight = 4;

template <typename Format>
struct Group {
  static constexpr std::uint32_t kVectors = kGroup / Format::kPerVector;
  uint4 vectors[kVectors];

  __device__ typename Format::Value get(std::uint32_t i) const {
    return Format::load(stored_in<Format>(vectors[i / Format::kPerVector], i % Format::kPerVector));
  }

  __device__ void put(std::uint32_t i, typename Format::Value value) {
    put_stored<Format>(vectors[i / Format::kPerVector], i % Format::kPerVector, Format::store(value));
  }
};

/// Computes in double between two float64 sides, else in float.
template <typename Source, typename Destination>
class Convert {
 public:
  using Value =
      std::conditional_t<std::is_same_v<Source, Float64> && std::is_same_v<Destination, Float64>, double, float>;

  __device__ explicit Convert(const CopyEntry& part)
      : divisor_(static_cast<Value>(part.divisor)), multiplier_(static_cast<Value>(part.multiplier)) {}

  __device__ typename Destination::Value operator()(typename Source::Value stored) const {
    auto value = static_cast<Value>(stored);
    if (divisor_ != 1) {
      value = value / divisor_;
    } else {
      value = value * multiplier_;  // exact: 1, or a power of two
    }
    return static_cast<typename Destination::Value>(value);
  }

 private:
  Value divisor_;
  Value multiplier_;
};

/// The position of element `index` of a part on one side.
__device__ inline std::uint64_t place(std::uint64_t index, std::uint64_t row_count, std::uint64_t stride) {
  if (stride == row_count) {
    return index;
  }
  // Division of 32-bit numbers is several times cheaper.
  if (((index | row_count) >> 32) == 0) {
    const std::uint32_t row = static_cast<std::uint32_t>(index) / static_cast<std::uint32_t>(row_count);
    return row * stride + (index - static_cast<std::uint64_t>(row) * row_count);
  }
  const std::uint64_t row = index / row_count;
  return row * stride + (index - row * row_count);
}

template <typename Source, typename Destination>
__device__ inline void copy_groups(const CopyItem& item, const CopyEntry& part, std::uint32_t groups) {
  const Convert<Source, Destination> convert(part);
  const auto load = [&](std::uint32_t group) {
    Group<Source> loaded{};
    if (part.source != 0) {
      const std::uint64_t at = place(item.first + group * std::uint64_t{kGroup}, part.row_count, part.source_stride);
      const auto* vectors =
          reinterpret_cast<const uint4*>(reinterpret_cast<const typename Source::Stored*>(part.source) + at);
#pragma unroll
      for (std::uint32_t i = 0; i < Group<Source>::kVectors; ++i) {
        loaded.vectors[i] = __ldg(vectors + i);
      }
    }
    return loaded;
  };
  const auto store = [&](std::uint32_t group, const Group<Source>& loaded) {
    const std::uint64_t at = place(item.first + group * std::uint64_t{kGroup}, part.row_count, part.destination_stride);
    auto* vectors = reinterpret_cast<uint4*>(reinterpret_cast<typename Destination::Stored*>(part.destination) + at);
    Group<Destination> result{};
#pragma unroll
    for (std::uint32_t i = 0; i < kGroup; ++i) {
      result.put(i, convert(loaded.get(i)));
    }
#pragma unroll
    for (std::uint32_t i = 0; i < Group<Destination>::kVectors; ++i) {
      __stcg(vectors + i, result.vectors[i]);
    }
  };
  // As many bytes in flight per thread as in the other passes, whatever the dtype.
  constexpr std::uint32_t kGroups = kInFlight / Group<Source>::kVectors > 0 ? kInFlight / Group<Source>::kVectors : 1;
  std::uint32_t group = threadIdx.x;
  for (; group + (kGroups - 1) * kThreads < groups; group += kGroups * kThreads) {
    Group<Source> loaded[kGroups];
#pragma unroll
    for (std::uint32_t i = 0; i < kGroups; ++i) {
      loaded[i] = load(group + i * kThreads);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kGroups; ++i) {
      store(group + i * kThreads, loaded[i]);
    }
  }
  for (; group < groups; group += kThreads) {
    store(group, load(group));
  }
}

template <typename Source, typename Destination>
__device__ inline void copy_elements(const CopyItem& item, const CopyEntry& part, std::uint32_t from) {
  const Convert<Source, Destination> convert(part);
  const auto* source = reinterpret_cast<const typename Source::Stored*>(part.source);
  auto* destination = reinterpret_cast<typename Destination::Stored*>(part.destination);
  for (std::uint32_t i = from + threadIdx.x; i < item.count; i += kThreads) {
    const std::uint64_t index = item.first + i;
    const typename Source::Stored stored =
        source == nullptr ? 0 : __ldg(source + place(index, part.row_count, part.source_stride));
    __stcg(
        destination + place(index, part.row_count, part.destination_stride),
        Destination::store(convert(Source::load(stored)))
    );
  }
}

template <typename Source, typename Destination>
__global__ void __launch_bounds__(kThreads, 4) copy_kernel(const CopyPass pass) {
  const CopyItem item = pass.items[blockIdx.x];
  const CopyEntry part = pass.parts[item.part];
  const std::uint32_t groups = part.wide != 0 ? item.count / kGroup : 0;
  copy_groups<Source, Destination>(item, part, groups);
  copy_elements<Source, Destination>(item, part, groups * kGroup);
}

template <typename Source, typename Destination>
constexpr bool kSupported = !(sizeof(typename Source::Stored) == 8 && sizeof(typename Destination::Stored) == 2) &&
                            !(sizeof(typename Source::Stored) == 2 && sizeof(typename Destination::Stored) == 8);

template <typename Source, typename Destination>
cudaError_t launch_pair(std::uint32_t blocks, const CopyPass& pass, cudaStream_t stream) {
  if constexpr (kSupported<Source, Destination>) {
    return launch(copy_kernel<Source, Destination>, blocks, pass, stream);
  } else {
    return cudaErrorInvalidValue;
  }
}

template <typename Source>
cudaError_t launch_source(DType destination, std::uint32_t blocks, const CopyPass& pass, cudaStream_t stream) {
  switch (destination) {
    case DType::Float32:
      return launch_pair<Source, Float32>(blocks, pass, stream);
    case DType::BFloat16:
      return launch_pair<Source, BFloat16>(blocks, pass, stream);
    case DType::Float16:
      return launch_pair<Source, Float16>(blocks, pass, stream);
    case DType::Float64:
      return launch_pair<Source, Float64>(blocks, pass, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_both(std::size_t pair, std::uint32_t blocks, const CopyPass& pass, cudaStream_t stream) {
  const auto destination = static_cast<DType>(pair % kDTypes);
  switch (static_cast<DType>(pair / kDTypes)) {
    case DType::Float32:
      return launch_source<Float32>(destination, blocks, pass, stream);
    case DType::BFloat16:
      return launch_source<BFloat16>(destination, blocks, pass, stream);
    case DType::Float16:
      return launch_source<Float16>(destination, blocks, pass, stream);
    case DType::Float64:
      return launch_source<Float64>(destination, blocks, pass, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace of_copy

cudaError_t copy(const DeviceCopyTable& table, cudaStream_t stream) {
  for (std::size_t pair = 0; pair < kDTypes * kDTypes; ++pair) {
    const std::uint32_t begin = table.first_of_pair[pair];
    const std::uint32_t blocks = table.first_of_pair[pair + 1] - begin;
    if (blocks == 0) {
      continue;
    }
    const CopyPass pass{table.items + begin, table.parts};
    if (const cudaError_t error = launch_both(pair, blocks, pass, stream); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

}  // namespace gradsync::kernels
