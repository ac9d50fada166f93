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

class GroupAborts {
 public:
  struct Member {
    CommunicatorSlot slot = 0;
    NcclCommunicator* communicator = nullptr;
  };

  virtual ~GroupAborts() = default;

  /// Nobody else calls NCCL with these any more. Returns at once.
  virtual void abort(std::vector<Member> group) = 0;

  /// The groups that are gone since the last call.
  [[nodiscard]] virtual std::vector<std::vector<CommunicatorSlot>> take_done() = 0;
};

class AbortThread final : public GroupAborts {
 public:
  /// `begin` is called first on the thread; `wake` on it behind each group. The library has to live for as long as the
  /// process where a call hangs.
  AbortThread(const NcclLibrary& library, std::function<void()> begin, std::function<void()> wake);
  ~AbortThread() override;
  AbortThread(const AbortThread&) = delete;
  AbortThread& operator=(const AbortThread&) = delete;

  void abort(std::vector<Member> group) override;
  [[nodiscard]] std::vector<std::vector<CommunicatorSlot>> take_done() override;

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared, const std::function<void()>& begin);

  std::shared_ptr<Shared> shared_;
};

}  // namespace gradsync::device
