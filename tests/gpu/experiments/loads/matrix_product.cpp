#include "gpu/experiments/loads/matrix_product.hpp"

#include "gpu/experiments/loads/probe_kernels.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <library_types.h>
#include <stdexcept>

namespace gradsync::experiments {
namespace {

// From cublas_api.h, which a machine with a driver and torch does not have; unchanged since CUDA 11.
constexpr int kNotTransposed = 0;
constexpr int kComputeFloat = 68;
constexpr int kDefaultAlgorithm = -1;
using Create = int (*)(void**);
using SetStream = int (*)(void*, cudaStream_t);
using Multiply = int (*)(
    void*,
    int,
    int,
    int,
    int,
    int,
    const void*,
    const void*,
    cudaDataType,
    int,
    const void*,
    cudaDataType,
    int,
    const void*,
    void*,
    cudaDataType,
    int,
    int,
    int
);

void must_cublas(int status, const char* call) {
  if (status != 0) {
    throw std::runtime_error(std::string(call) + ": cublasStatus " + std::to_string(status));
  }
}

}  // namespace

MatrixProduct::MatrixProduct(int n) : n_(n) {
  const std::size_t elements = static_cast<std::size_t>(n) * static_cast<std::size_t>(n);
  must(driver().memory_allocate(&matrices_, 3 * elements * 2), "cuMemAlloc");
  const Stream stream;
  // Pairs of bfloat16 of 1.09 and 1.26: not zeros, but constant. Ratios between runs are the answer, not the rates.
  must(fill_words(matrices_, 3 * elements / 2, 0x3F8C3FA1, stream.get()), "fill_words");
  stream.synchronize();
  find_library();
  enqueue(stream);
  stream.synchronize();
}

void MatrixProduct::find_library() {
  const char* named = std::getenv("GRADSYNC_CUBLAS");
  const std::string path = named != nullptr ? named : "libcublas.so.13";
  // Its other half lies beside it, where the loader may not look.
  const std::size_t slash = path.rfind('/');
  if (slash != std::string::npos) {
    (void)dlopen((path.substr(0, slash) + "/libcublasLt.so.13").c_str(), RTLD_NOW | RTLD_GLOBAL);
  }
  void* library = dlopen(path.c_str(), RTLD_NOW);
  if (library == nullptr) {
    how_ = std::string("wmma: ") + dlerror();
    return;
  }
  const auto create = reinterpret_cast<Create>(dlsym(library, "cublasCreate_v2"));
  set_stream_ = dlsym(library, "cublasSetStream_v2");
  multiply_ = dlsym(library, "cublasGemmEx");
  if (create == nullptr || set_stream_ == nullptr || multiply_ == nullptr) {
    how_ = "wmma: " + path + " lacks a function";
    return;
  }
  must_cublas(create(&handle_), "cublasCreate");
  how_ = "cublas";
}

void MatrixProduct::enqueue(const Stream& stream) {
  const std::size_t bytes = static_cast<std::size_t>(n_) * static_cast<std::size_t>(n_) * 2;
  if (handle_ == nullptr) {
    must(multiply_bfloat16(matrices_, matrices_ + bytes, matrices_ + 2 * bytes, n_, stream.get()), "multiply_bfloat16");
    return;
  }
  static constexpr float kOne = 1;
  static constexpr float kZero = 0;
  const auto pointer = [&](int which) {
    return reinterpret_cast<void*>(matrices_ + bytes * static_cast<unsigned>(which));
  };
  must_cublas(reinterpret_cast<SetStream>(set_stream_)(handle_, stream.get()), "cublasSetStream");
  must_cublas(
      reinterpret_cast<Multiply>(multiply_)(
          handle_,
          kNotTransposed,
          kNotTransposed,
          n_,
          n_,
          n_,
          &kOne,
          pointer(0),
          CUDA_R_16BF,
          n_,
          pointer(1),
          CUDA_R_16BF,
          n_,
          &kZero,
          pointer(2),
          CUDA_R_16BF,
          n_,
          kComputeFloat,
          kDefaultAlgorithm
      ),
      "cublasGemmEx"
  );
}

double MatrixProduct::operations() const {
  const auto n = static_cast<double>(n_);
  return 2 * n * n * n;
}

}  // namespace gradsync::experiments
