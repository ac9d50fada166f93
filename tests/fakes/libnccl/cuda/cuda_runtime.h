#pragma once
// What nccl.h needs of CUDA's header of this name.

typedef struct CUstream_st* cudaStream_t;
