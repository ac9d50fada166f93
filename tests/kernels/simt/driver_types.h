#pragma once

// Stands in for the CUDA header of this name: the types that kernels/kernels.hpp mentions.

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
};

struct CUstream_st;
using cudaStream_t = CUstream_st*;
