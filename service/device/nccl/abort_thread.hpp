#pragma once
// Aborts communicators in groups: thread `nccl:abort`, which launches nothing. NCCL frees memory for that, which waits
// for everything that runs on the device: one that was aborted by itself would wait for the kernels of the others.
//
// A call of NCCL may hang. Then the thread is left behind when this is destroyed, and ends with the process.

#include "device/nccl/communicator_table.hpp"
#include "device/nccl/nccl_library.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace gradsync::device {

class AbortThread {
 public:
  struct Member {
    CommunicatorSlot slot = 0;
    NcclCommunicator* communicator = nullptr;
  };

  /// `begin` is called first on the thread; `wake` on it behind each group. The library has to live for as long as the
  /// process where a call hangs.
  AbortThread(const NcclLibrary& library, std::function<void()> begin, std::function<void()> wake);
  ~AbortThread();
  AbortThread(const AbortThread&) = delete;
  AbortThread& operator=(const AbortThread&) = delete;

  /// Nobody else calls NCCL with these any more.
  void abort(std::vector<Member> group);

  /// The groups that are gone since the last call.
  [[nodiscard]] std::vector<std::vector<CommunicatorSlot>> take_done();

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared, const std::function<void()>& begin);

  std::shared_ptr<Shared> shared_;
};

}  // namespace gradsync::device
