#pragma once
// libnccl.so.2, loaded at run time and never linked. It is not unloaded: NCCL has threads of its own, which may outlive
// every communicator. Threads: as NCCL says; this object is not changed after its construction.

#include "device/nccl/nccl_abi.hpp"

#include <functional>
#include <string>

namespace gradsync::device {

class NcclLibrary {
 public:
  static constexpr int kLeastVersion = 22809;  ///< 2.28.9
  static constexpr int kFirstOfNextMajor = 30000;

  /// `path`: empty for libnccl.so.2 as the loader finds it. Throws DeviceError that names the file, what is wrong with
  /// it, and what to do.
  explicit NcclLibrary(const std::string& path);

  using Find = std::function<void*(const char* function)>;

  /// The functions are found by their names; null: there is none. `path` is for messages. Throws likewise.
  NcclLibrary(std::string path, const Find& functions);

  [[nodiscard]] int version() const { return version_; }

  [[nodiscard]] const std::string& path() const { return path_; }

  nccl_function::GetUniqueId* get_unique_id = nullptr;
  nccl_function::CommInitRankConfig* init_rank = nullptr;
  nccl_function::CommAbort* abort = nullptr;
  nccl_function::CommGetAsyncError* get_async_error = nullptr;
  nccl_function::CommCount* count = nullptr;
  nccl_function::CommUserRank* user_rank = nullptr;
  nccl_function::AllReduce* all_reduce = nullptr;
  nccl_function::ReduceScatter* reduce_scatter = nullptr;
  nccl_function::AllGather* all_gather = nullptr;
  nccl_function::GroupStart* group_start = nullptr;
  nccl_function::GroupEnd* group_end = nullptr;

  /// What NCCL says of a result, its number, and of the communicator's last error, which may be null.
  [[nodiscard]] std::string words_for(NcclResult result, NcclCommunicator* communicator = nullptr) const;

  /// Throws DeviceError where a call that cannot be in progress did not succeed.
  void must(NcclResult result, const char* what) const;

 private:
  std::string path_;
  int version_ = 0;
  nccl_function::GetErrorString* error_string_ = nullptr;
  nccl_function::GetLastError* last_error_ = nullptr;
};

/// 22809 → "2.28.9".
[[nodiscard]] std::string nccl_version_text(int version);

/// What a person can do about a result of NCCL; empty where nothing is known.
[[nodiscard]] std::string hint_for_nccl(NcclResult result);

}  // namespace gradsync::device
