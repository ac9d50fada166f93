#include "device/gpu/kernel_library.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>

#include <dlfcn.h>

namespace gradsync::device {

namespace {

const char* last_error() {
  const char* error = ::dlerror();
  return error == nullptr ? "no reason given" : error;
}

template <typename Function>
void find(void* library, const std::string& path, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw DeviceError(fmt::format("{} has no function {}: install the library of this release", path, name));
  }
}

}  // namespace

KernelLibrary::KernelLibrary(const std::string& path) : library_(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    throw DeviceError(fmt::format("the kernels of GPUs cannot be loaded: {}", last_error()));
  }
  const auto get = [&](const char* name, auto& function) { find(library_.get(), path, name, function); };
  decltype(&gradsync_gpu_abi) gpu_abi = nullptr;
  decltype(&gradsync_kernels_abi) kernels_abi = nullptr;
  get("gradsync_gpu_abi", gpu_abi);
  get("gradsync_kernels_abi", kernels_abi);
  if (gpu_abi() != GRADSYNC_GPU_ABI || kernels_abi() != GRADSYNC_KERNELS_ABI) {
    throw DeviceError(fmt::format(
        "{} has the interfaces {} and {}, this program was compiled for {} and {}: install both of one release",
        path,
        gpu_abi(),
        kernels_abi(),
        GRADSYNC_GPU_ABI,
        GRADSYNC_KERNELS_ABI
    ));
  }
  get("gradsync_gpu_error", error_);
  get("gradsync_gpu_error_code", code_);
  get("gradsync_kernels_error", table_error_);
  get("gradsync_gpu_describe", describe);
  get("gradsync_gpu_open", open);
  get("gradsync_gpu_allocate", allocate);
  get("gradsync_gpu_free", free);
  get("gradsync_gpu_map_host", map_host);
  get("gradsync_gpu_unmap_host", unmap_host);
  get("gradsync_gpu_export", export_memory);
  get("gradsync_gpu_import", import_memory);
  get("gradsync_gpu_close_imported", close_imported);
  get("gradsync_gpu_wait", wait);
  get("gradsync_gpu_zero", zero);
  get("gradsync_gpu_read", read);
  get("gradsync_gpu_write", write);
  get("gradsync_gpu_send", send);
  get("gradsync_stream_create", create_stream);
  get("gradsync_stream_destroy", destroy_stream);
  get("gradsync_stream_handle", stream_handle);
  get("gradsync_stream_mark", mark_stream);
  get("gradsync_stream_passed", passed_by_stream);
  get("gradsync_reduction_create", create_reduction);
  get("gradsync_reduction_destroy", destroy_reduction);
  get("gradsync_reduce", reduce);
  get("gradsync_sum_powers", sum_powers);
  get("gradsync_table_create", create_table);
  get("gradsync_table_destroy", destroy_table);
  get("gradsync_table_memory", table_memory);
  get("gradsync_table_load", load_table);
  get("gradsync_scale", scale);
}

void KernelLibrary::must(int failed, const char* what) const {
  if (failed != 0) {
    const int code = code_();
    throw DeviceError(
        fmt::format("{}: {}{}", what, error_(), code == 0 ? "" : fmt::format(" (CUDA error {})", code)),
        hint_for_cuda_error(code),
        ends_use_of_device(code) ? DeviceError::Kind::DeviceLost : DeviceError::Kind::Failed
    );
  }
}

void KernelLibrary::must_table(int failed, const char* what) const {
  if (failed != 0) {
    const DeviceError error(fmt::format("{}: {}", what, table_error_()));
    must(wait(), what);  // these functions give no number: a device that is lost gives it again
    throw error;
  }
}

bool ends_use_of_device(int error) {
  switch (error) {
    case 214:  // memory with an uncorrectable error
    case 220:  // NVLink with one
    case 226:  // an exception that the GPU contained
    case 700:  // illegal address
    case 702:  // a kernel took too long
    case 710:  // assert
    case 714:  // stack
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // address space
    case 718:  // program counter
    case 719:  // launch failure
    case 721:  // tensor memory
    case 810:  // ended by the MPS server
    case 911:  // an external device
      return true;
    default:
      return false;
  }
}

std::string hint_for_cuda_error(int error) {
  switch (error) {
    case 1:
      return "this is no handle of cudaMalloc's memory: unset expandable_segments, or use gradsync.alloc_grad_buffer()";
    case 2:
      return "the GPU has no memory left for the worker of gradsyncd";
    case 35:
    case 100:
      return "no driver or no GPU is visible to gradsyncd: give its container the GPU";
    case 46:
      return "the GPU is in an exclusive compute mode: nvidia-smi -c DEFAULT";
    case 201:
      return "the trainer and the worker have the same pid value: share the PID namespace (shareProcessNamespace, "
             "hostPID)";
    case 205:
      return "the memory cannot be mapped here: is the same GPU visible to both containers?";
    case 208:
      return "memory that was freed at this address is still mapped here, until the collectives on this GPU are done: "
             "register the memory again then";
    case 214:
    case 220:
      return "the GPU's hardware is at fault: look at nvidia-smi -q and at Xid in dmesg, drain the node, reset the GPU";
    case 217:
    case 711:
      return "the memory lies on another GPU than the worker's, without peer access: [gpu] peer_access=off has NCCL "
             "add "
             "it up";
    case 400:
      return "the owner ended or freed the memory: register it again, with a higher generation";
    case 702:
      return "a kernel ran longer than the watchdog of this GPU allows: use a GPU that drives no display";
    case 801:
      return "memory of a MIG instance cannot be shared with another instance, nor on this platform";
    default:
      break;
  }
  if (error >= 805 && error <= 810) {
    return "the MPS server of the GPU refuses: see nvidia-cuda-mps-control";
  }
  return ends_use_of_device(error)
             ? "the GPU stopped in a kernel: look at Xid in dmesg, and for memory that a rank freed "
               "while it was registered"
             : "";
}

void KernelLibrary::Close::operator()(void* library) const { ::dlclose(library); }

}  // namespace gradsync::device
