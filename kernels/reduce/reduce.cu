// The reducing pass as it is launched, and where inputs and results have one format.

#include "kernels/reduce/reduce_kernel.cuh"

#include <cmath>

namespace gradsync::kernels {

inline namespace of_reduce {

/// A power of two whose inverse is a normal number divides by an exact multiplication.
template <typename Value>
Division division_by(Value divisor) {
  int exponent = 0;
  const bool exact = std::frexp(divisor, &exponent) == Value{0.5} && std::isnormal(Value{1} / divisor);
  return divisor == Value{1} ? Division::None : exact ? Division::ByReciprocal : Division::True;
}

}  // namespace of_reduce

cudaError_t reduce(const ReduceTable& table, const Reduction& what, const ReduceMemory& memory, cudaStream_t stream) {
  if (what.bucket >= table.buckets().size() || !(what.p >= 1)) {
    return cudaErrorInvalidValue;
  }
  const ReduceBucket& bucket = table.buckets()[what.bucket];
  if (bucket.chunks == 0) {
    return cudaSuccess;
  }
  ReducePass pass = pass_over(table, memory, what.bucket, what.p);
  pass.nonfinite = reinterpret_cast<unsigned long long*>(memory.nonfinite);
  pass.differs = memory.differs;
  pass.divisor = bucket.divisor;
  pass.division =
      bucket.dtype == DType::Float64 ? division_by(bucket.divisor) : division_by(static_cast<float>(bucket.divisor));
  pass.most_sums = table.most_sums(what.bucket);
  pass.compare = what.compare;
  pass.minus_zeros = bucket.minus_zeros;
  if (bucket.sources.value_or(bucket.dtype) != bucket.dtype) {
    return launch_mixed(pass, *bucket.sources, bucket.dtype, stream);
  }
  return launch_dtype(bucket.dtype, [&](auto format) {
    return launch_reduce<decltype(format), decltype(format)>(pass, stream);
  });
}

}  // namespace gradsync::kernels
