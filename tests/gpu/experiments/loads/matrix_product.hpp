#pragma once
// Products of bfloat16 matrices: cuBLAS where it is found (GRADSYNC_CUBLAS or the loader's path), else a plain kernel.

#include "gpu/experiments/cuda_calls.hpp"

#include <string>

namespace gradsync::experiments {

class MatrixProduct {
 public:
  explicit MatrixProduct(int n);
  MatrixProduct(MatrixProduct&&) = delete;
  MatrixProduct& operator=(MatrixProduct&&) = delete;
  // The library and its memory stay until the process ends.
  ~MatrixProduct() = default;

  void enqueue(const Stream& stream);

  [[nodiscard]] double operations() const;

  /// "cublas", or "wmma" and why.
  [[nodiscard]] const std::string& how() const { return how_; }

 private:
  void find_library();

  int n_;
  CUdeviceptr matrices_ = 0;
  std::string how_;
  void* handle_ = nullptr;
  void* set_stream_ = nullptr;
  void* multiply_ = nullptr;
};

}  // namespace gradsync::experiments
