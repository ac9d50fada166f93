#include "device/nccl/nccl_library.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>

#include <dlfcn.h>
#include <type_traits>
#include <utility>

namespace gradsync::device {

namespace {

constexpr const char* kDefault = "libnccl.so.2";
constexpr const char* kInstall =
    "pip install 'nvidia-nccl-cu13>=2.28.9' and name its nvidia/nccl/lib/libnccl.so.2 in [nccl] library";

DeviceError unusable(const std::string& what) { return {what, kInstall, DeviceError::Kind::Unsupported}; }

std::string path_of(const std::string& configured) { return configured.empty() ? kDefault : configured; }

const char* loader_error() {
  const char* error = ::dlerror();
  return error == nullptr ? "no reason given" : error;
}

NcclLibrary::Find functions_of(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw unusable(fmt::format("NCCL cannot be loaded: {}", loader_error()));
  }
  return [library](const char* function) { return ::dlsym(library, function); };
}

}  // namespace

NcclLibrary::NcclLibrary(const std::string& path) : NcclLibrary(path_of(path), functions_of(path_of(path))) {}

NcclLibrary::NcclLibrary(std::string path, const Find& functions) : path_(std::move(path)) {
  const auto find = [&](const char* name, auto*& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(functions(name));
    if (function == nullptr) {
      throw unusable(fmt::format("{} has no function {}: it is not NCCL 2.28.9 or later", path_, name));
    }
  };
  nccl_function::GetVersion* get_version = nullptr;
  find("ncclGetVersion", get_version);
  find("ncclGetErrorString", error_string_);
  must(get_version(&version_), "ncclGetVersion");
  if (version_ < kLeastVersion || version_ >= kFirstOfNextMajor) {
    throw unusable(fmt::format(
        "{} is NCCL {}, and gradsync needs {} or a later 2.x",
        path_,
        nccl_version_text(version_),
        nccl_version_text(kLeastVersion)
    ));
  }
  find("ncclGetLastError", last_error_);
  find("ncclGetUniqueId", get_unique_id);
  find("ncclCommInitRankConfig", init_rank);
  find("ncclCommAbort", abort);
  find("ncclCommGetAsyncError", get_async_error);
  find("ncclCommCount", count);
  find("ncclCommUserRank", user_rank);
  find("ncclAllReduce", all_reduce);
  find("ncclReduceScatter", reduce_scatter);
  find("ncclAllGather", all_gather);
  find("ncclGroupStart", group_start);
  find("ncclGroupEnd", group_end);
}

std::string NcclLibrary::words_for(NcclResult result, NcclCommunicator* communicator) const {
  const std::string words = fmt::format("{} (NCCL result {})", error_string_(result), static_cast<int>(result));
  const char* last = last_error_ == nullptr ? nullptr : last_error_(communicator);
  return last == nullptr || *last == '\0' ? words : fmt::format("{}: {}", words, last);
}

void NcclLibrary::must(NcclResult result, const char* what) const {
  if (result != NcclResult::Success) {
    throw DeviceError(fmt::format("{}: {}", what, words_for(result)), hint_for_nccl(result));
  }
}

std::string nccl_version_text(int version) {
  // Until 2.8 it was 1000 · major + 100 · minor + patch.
  const int major = version < 10'000 ? version / 1000 : version / 10'000;
  const int rest = version - major * (version < 10'000 ? 1000 : 10'000);
  return fmt::format("{}.{}.{}", major, rest / 100, rest % 100);
}

std::string hint_for_nccl(NcclResult result) {
  switch (result) {
    case NcclResult::UnhandledCudaError:
      return "a call of CUDA failed inside of NCCL: NCCL_DEBUG=WARN in the daemon's environment says which";
    case NcclResult::SystemError:
      return "NCCL met an error of the system: name the network in [nccl] interface, look at limits of descriptors and "
             "locked memory; NCCL_DEBUG=WARN says more";
    case NcclResult::RemoteError:
      return "another node closed its connection: its daemon's log says why";
    case NcclResult::InvalidUsage:
      return "two members of one communicator may be on one GPU, or called it differently; NCCL_DEBUG=WARN says more";
    default:
      return "";
  }
}

}  // namespace gradsync::device
