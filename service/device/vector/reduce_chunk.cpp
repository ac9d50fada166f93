#include "device/math/chunk_math.hpp"

namespace gradsync::device {

ChunkStats reduce_chunk(const ReduceChunk& chunk) {
  switch (chunk.dtype) {
    case plan::DType::Float32:
      return reduce_float32(chunk);
    case plan::DType::BFloat16:
      return reduce_bfloat16(chunk);
    case plan::DType::Float16:
      return reduce_float16(chunk);
    default:
      return reduce_float64(chunk);
  }
}

ChunkStats reduce_mixed(const MixedChunk& chunk) {
  switch (chunk.dtype) {
    case plan::DType::BFloat16:
      return mix_to_bfloat16(chunk);
    case plan::DType::Float16:
      return mix_to_float16(chunk);
    default:
      return mix_to_float32(chunk);
  }
}

}  // namespace gradsync::device
