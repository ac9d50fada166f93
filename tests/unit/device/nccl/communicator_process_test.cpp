// Communicators whose members are processes, as workers are: real sums over what they share, and a member that is
// killed in the middle of an operation.

#include "fakes/libnccl/nccl_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

namespace gradsync::device {
namespace {

constexpr PlanId kWorkersPlan = 1;
constexpr std::size_t kWorkersElements = 30'000;

/// What the processes of a test have in common, as daemons carry it for workers.
struct Shared {
  NcclUniqueId id;
  std::atomic<bool> has_id;
  std::atomic<int> launched;
};

class Processes {
 public:
  explicit Processes(int size) : size_(size) {
    void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) Shared();
  }

  ~Processes() {
    for (const pid_t child : children_) {
      (void)::kill(child, SIGKILL);
      (void)::waitpid(child, nullptr, 0);
    }
    (void)::munmap(shared_, sizeof(Shared));
  }

  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  /// Forks; `body` has to return true in each of them.
  template <typename Body>
  void start(const Body& body) {
    for (int rank = 0; rank < size_; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(100);
        ::_exit(body(rank, *shared_) ? 0 : 1);
      }
      children_.push_back(child);
    }
  }

  [[nodiscard]] Shared& shared() const { return *shared_; }

  void kill(int rank) {
    const pid_t child = children_[static_cast<std::size_t>(rank)];
    (void)::kill(child, SIGKILL);
    (void)::waitpid(child, nullptr, 0);
    std::erase(children_, child);
  }

  /// Whether all that are left say that it went well.
  [[nodiscard]] bool well() {
    bool all = true;
    for (const pid_t child : std::exchange(children_, {})) {
      int status = 1;
      all = ::waitpid(child, &status, 0) == child && status == 0 && all;
    }
    return all;
  }

 private:
  int size_;
  Shared* shared_;
  std::vector<pid_t> children_;
};

/// A worker's communicators, connected with those of the others.
class Worker {
 public:
  Worker(int rank, int size, Shared& shared, std::size_t elements)
      : device_(fake_, 0),
        communicators_(fakes::fake_library(), device_, fakes::NcclWorld::small(), [] {}),
        planned_{name_of(size), CollectiveKind::AllReduce, NcclType::Float32, elements, 0, 0} {
    fake_.script(nullptr);  // as the environment says
    CommunicatorSpec spec{{"dp"}, {}, static_cast<std::uint32_t>(rank)};
    for (int each = 0; each < size; ++each) {
      spec.ranks.push_back(each);
    }
    const auto offers = communicators_.load(kWorkersPlan, 1, {spec}, {planned_}, now_);
    if (rank == 0) {
      shared.id = *offers[0].id;
      shared.has_id = true;
    }
    while (!shared.has_id) {
      ::usleep(100);
    }
    communicators_.connect(kWorkersPlan, {{planned_.communicator, instance_of(shared.id), shared.id}}, now_);
  }

  [[nodiscard]] static std::string name_of(int size) {
    std::vector<std::int64_t> ranks;
    for (int each = 0; each < size; ++each) {
      ranks.push_back(each);
    }
    return plan::communicator_name({"dp"}, ranks);
  }

  template <typename Event>
  Event await() {
    while (true) {
      (void)communicators_.advance(now_);
      for (const Communicators::Event& event : communicators_.take_events()) {
        if (const auto* found = std::get_if<Event>(&event)) {
          return *found;
        }
      }
      ::usleep(100);
    }
  }

  void launch(std::vector<float>& values) {
    auto* const bytes = reinterpret_cast<std::byte*>(values.data());
    communicators_.begin_step(kWorkersPlan);
    communicators_.launch(kWorkersPlan, planned_, bytes, bytes, 1, now_);
  }

  void abort() { communicators_.abort(kWorkersPlan, now_); }

 private:
  fakes::FakeNccl fake_;
  fakes::HostMemoryDevice device_;
  Communicators communicators_;
  PlannedCollective planned_;
  TimePoint now_{std::chrono::hours(1)};
};

class CommunicatorsOfProcesses : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, CommunicatorsOfProcesses, testing::Values(2, 3, 5, 8));

TEST_P(CommunicatorsOfProcesses, add_up) {
  const int size = GetParam();
  Processes processes(size);
  processes.start([size](int rank, Shared& shared) {
    Worker worker(rank, size, shared, kWorkersElements);
    (void)worker.await<Communicators::Connected>();
    std::vector<float> values(kWorkersElements, static_cast<float>(rank + 1));
    worker.launch(values);
    const bool done = worker.await<Communicators::Operated>().done;
    const std::vector<float> expected(kWorkersElements, static_cast<float>(size * (size + 1)) / 2);
    ++shared.launched;
    while (shared.launched < size) {
      ::usleep(100);  // a member that has gone is an error to the others
    }
    return done && values == expected;
  });
  EXPECT_TRUE(processes.well());
}

TEST_P(CommunicatorsOfProcesses, fail_the_operation_that_a_killed_member_took_part_in) {
  const int size = GetParam();
  ::setenv("GRADSYNC_FAKE_NCCL", ("stops rank=" + std::to_string(size - 1) + " operation=2").c_str(), 1);
  Processes processes(size);
  processes.start([size](int rank, Shared& shared) {
    Worker worker(rank, size, shared, kWorkersElements);
    (void)worker.await<Communicators::Connected>();
    std::vector<float> values(kWorkersElements, 1.0F);
    worker.launch(values);
    ++shared.launched;
    const auto broken = worker.await<Communicators::Broken>();
    worker.abort();
    (void)worker.await<Communicators::Aborted>();
    return broken.message.find(Worker::name_of(size)) != std::string::npos &&
           broken.message.find("closed its connection") != std::string::npos;
  });
  while (processes.shared().launched < size) {
    ::usleep(100);
  }
  processes.kill(size - 1);
  EXPECT_TRUE(processes.well());
  ::unsetenv("GRADSYNC_FAKE_NCCL");
}

}  // namespace
}  // namespace gradsync::device
