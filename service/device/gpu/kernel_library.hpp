#pragma once
// libgradsync_kernels.so, loaded at run time: this program links no CUDA. Its functions are those of
// kernels/library/gradsync_gpu.h, and the tables of gradsync_kernels.h that multiply.

#include "kernels/library/gradsync_gpu.h"
#include "kernels/library/gradsync_kernels.h"

#include <memory>
#include <string>

namespace gradsync::device {

class KernelLibrary {
 public:
  /// Throws DeviceError that names the file, and what is wrong with it.
  explicit KernelLibrary(const std::string& path);

  decltype(&gradsync_gpu_describe) describe = nullptr;
  decltype(&gradsync_gpu_open) open = nullptr;
  decltype(&gradsync_gpu_allocate) allocate = nullptr;
  decltype(&gradsync_gpu_free) free = nullptr;
  decltype(&gradsync_gpu_map_host) map_host = nullptr;
  decltype(&gradsync_gpu_unmap_host) unmap_host = nullptr;
  decltype(&gradsync_gpu_export) export_memory = nullptr;
  decltype(&gradsync_gpu_import) import_memory = nullptr;
  decltype(&gradsync_gpu_close_imported) close_imported = nullptr;
  decltype(&gradsync_gpu_wait) wait = nullptr;
  decltype(&gradsync_gpu_zero) zero = nullptr;
  decltype(&gradsync_gpu_read) read = nullptr;
  decltype(&gradsync_gpu_write) write = nullptr;
  decltype(&gradsync_gpu_send) send = nullptr;
  decltype(&gradsync_stream_create) create_stream = nullptr;
  decltype(&gradsync_stream_destroy) destroy_stream = nullptr;
  decltype(&gradsync_stream_handle) stream_handle = nullptr;
  decltype(&gradsync_stream_mark) mark_stream = nullptr;
  decltype(&gradsync_stream_passed) passed_by_stream = nullptr;
  decltype(&gradsync_reduction_create) create_reduction = nullptr;
  decltype(&gradsync_reduction_destroy) destroy_reduction = nullptr;
  decltype(&gradsync_reduce) reduce = nullptr;
  decltype(&gradsync_sum_powers) sum_powers = nullptr;
  decltype(&gradsync_table_create) create_table = nullptr;
  decltype(&gradsync_table_destroy) destroy_table = nullptr;
  decltype(&gradsync_table_memory) table_memory = nullptr;
  decltype(&gradsync_table_load) load_table = nullptr;
  decltype(&gradsync_scale) scale = nullptr;

  /// Throws DeviceError with what the library says, where `failed` is not 0, and with what to do about it; of the kind
  /// DeviceLost where no later call can succeed. `table`: the call was one of gradsync_kernels.h.
  void must(int failed, const char* what) const;
  void must_table(int failed, const char* what) const;

  [[nodiscard]] std::string said() const { return error_(); }  ///< of the last failure

 private:
  struct Close {
    void operator()(void* library) const;
  };

  std::unique_ptr<void, Close> library_;
  decltype(&gradsync_gpu_error) error_ = nullptr;
  decltype(&gradsync_gpu_error_code) code_ = nullptr;
  decltype(&gradsync_kernels_error) table_error_ = nullptr;
};

/// Whether a process that met this cudaError_t can do nothing more with its GPU. These are the results of which CUDA
/// says that the process has to be started anew, and uncorrectable errors of the hardware. One that keeps a GPU from
/// being opened is none of them: nothing is lost by it, and the next try may succeed.
[[nodiscard]] bool ends_use_of_device(int error);

/// What a person can do about this cudaError_t; empty where nothing is known.
[[nodiscard]] std::string hint_for_cuda_error(int error);

}  // namespace gradsync::device
