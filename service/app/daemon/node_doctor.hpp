#pragma once
// Examines the node for clients (`doctor.run`), one examination after the other, each on a thread of its own: `doctor`.
// Who asks while one runs has its findings. The next begins when as much time has passed as the last one took, so that
// no client can have GPUs and CPUs examined for more than half of the time. Who asks meanwhile waits, and all of these
// have one examination.
//
// Thread: io, but for `work`. Invariant: each call is answered once, but none after `stop`. When it is destroyed `io`
// runs nothing any more.

#include "app/doctor/examination.hpp"
#include "base/fair_budget.hpp"
#include "engine/types.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstdint>
#include <thread>
#include <vector>

namespace gradsync::app {

class NodeDoctor {
 public:
  using Reply = engine::Reply<rpc::DoctorAnswer>;

  /// Throws std::system_error where no eventfd can be had.
  NodeDoctor(boost::asio::io_context& io, ExaminationOptions options, std::uint32_t own_uid);
  ~NodeDoctor();  ///< as `stop`, and joins the thread
  NodeDoctor(const NodeDoctor&) = delete;
  NodeDoctor& operator=(const NodeDoctor&) = delete;

  void ask(const Holder& caller, Reply reply);

  /// Ends what runs, and answers nobody any more.
  void stop();

 private:
  static constexpr std::uint64_t kMostWaiting = 64;

  enum class State : std::uint8_t {
    Idle,
    Examining,
    Stuck,  ///< the process was killed, and does not end
    Resting,
  };

  struct Waiting {
    Reply reply;
    FairBudget::Share share;
  };

  void start();
  void work();  ///< on the thread
  void on_answer(const Result<rpc::DoctorAnswer>& answer, pid_t stuck);
  void answer_all(const Result<rpc::DoctorAnswer>& answer);
  void rest();

  boost::asio::io_context& io_;
  ExaminationOptions options_;
  FairBudget budget_;
  std::vector<Waiting> waiting_;
  State state_ = State::Idle;
  bool stopped_ = false;
  pid_t stuck_ = 0;  ///< 0: none is
  TimePoint started_{};
  TimePoint::duration took_{};  ///< until it was answered
  boost::asio::steady_timer timer_;
  UniqueFd stop_;       ///< an eventfd
  std::thread thread_;  ///< joinable from `start` to `rest`
};

}  // namespace gradsync::app
