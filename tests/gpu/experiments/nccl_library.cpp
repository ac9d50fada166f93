#include "gpu/experiments/nccl_library.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <stdexcept>

namespace gradsync::experiments {
namespace {

template <typename Function>
void find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw std::runtime_error(std::string("NCCL has no ") + name);
  }
}

NcclLibrary find_all() {
  void* library = dlopen(nullptr, RTLD_NOW);
  if (library == nullptr || dlsym(library, "ncclGetUniqueId") == nullptr) {
    const char* named = std::getenv("GRADSYNC_NCCL");
    library = dlopen(named != nullptr ? named : "libnccl.so.2", RTLD_NOW);
    if (library == nullptr) {
      throw std::runtime_error(std::string("NCCL was not found (GRADSYNC_NCCL names it): ") + dlerror());
    }
  }
  NcclLibrary all{};
  find(library, all.get_version, "ncclGetVersion");
  find(library, all.get_unique_id, "ncclGetUniqueId");
  find(library, all.init_rank_config, "ncclCommInitRankConfig");
  find(library, all.all_reduce, "ncclAllReduce");
  find(library, all.get_async_error, "ncclCommGetAsyncError");
  find(library, all.finalize, "ncclCommFinalize");
  find(library, all.destroy, "ncclCommDestroy");
  find(library, all.abort, "ncclCommAbort");
  find(library, all.last_error, "ncclGetLastError");
  find(library, all.error_string, "ncclGetErrorString");
  return all;
}

}  // namespace

const NcclLibrary& nccl() {
  static const NcclLibrary all = find_all();
  return all;
}

std::string missing_nccl() {
  try {
    (void)nccl();
    return "";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

}  // namespace gradsync::experiments
