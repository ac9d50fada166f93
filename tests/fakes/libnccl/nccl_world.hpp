#pragma once
// GPUs of one process, each with a thread for its lane and with its communicators, over the fake NCCL. Time stands
// still unless a test moves it; waits have a real limit.

#include "device/nccl/communicators.hpp"
#include "device/nccl/host_stream.hpp"
#include "fakes/libnccl/fake_nccl.hpp"
#include "plan/transfer/communicator_name.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gradsync::fakes {

/// The fake library, as tests tell it what to do.
class FakeNccl {
 public:
  FakeNccl() : handle_(::dlopen(GRADSYNC_FAKE_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      throw std::runtime_error(::dlerror());
    }
    find("gradsync_fake_nccl_script", script);
    find("gradsync_fake_nccl_device", device);
    find("gradsync_fake_nccl_violations", violations);
    find("gradsync_fake_nccl_open_ids", open_ids);
    find("gradsync_fake_nccl_open", open);
    find("gradsync_fake_nccl_reset", reset);
    reset();
  }

  decltype(&gradsync_fake_nccl_script) script = nullptr;
  decltype(&gradsync_fake_nccl_device) device = nullptr;
  decltype(&gradsync_fake_nccl_violations) violations = nullptr;
  decltype(&gradsync_fake_nccl_open_ids) open_ids = nullptr;
  decltype(&gradsync_fake_nccl_open) open = nullptr;
  decltype(&gradsync_fake_nccl_reset) reset = nullptr;

 private:
  template <typename Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(handle_, name));
  }

  void* handle_;
};

/// For as long as the process: a thread that hangs in an abort may call it later.
inline const device::NcclLibrary& fake_library() {
  static const auto* const one = new device::NcclLibrary(GRADSYNC_FAKE_NCCL_LIBRARY);
  return *one;
}

/// A GPU of this process, by the number that the fake knows it by.
class HostMemoryDevice : public device::HostCollectiveDevice {
 public:
  HostMemoryDevice(FakeNccl& fake, int number) : fake_(fake), number_(number) {}

  void use_on_this_thread() override { fake_.device(number_); }

 private:
  FakeNccl& fake_;
  int number_;
};

/// One GPU. Everything but `on_thread` is called on its thread.
class NcclMember {
 public:
  NcclMember(FakeNccl& fake, int number, const device::CommunicatorSettings& settings, const TimePoint& now)
      : number_(number),
        now_(now),
        device_(fake, number),
        communicators_(std::make_unique<device::Communicators>(fake_library(), device_, settings, [] {})),
        thread_([this] { run(); }) {
    (void)on_thread([this] { device_.use_on_this_thread(); });
  }

  ~NcclMember() {
    on_thread([this] { communicators_.reset(); }).wait();
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  NcclMember(const NcclMember&) = delete;
  NcclMember& operator=(const NcclMember&) = delete;

  std::future<void> on_thread(std::function<void()> work) {
    std::packaged_task<void()> task(std::move(work));
    std::future<void> done = task.get_future();
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(task));
    changed_.notify_one();
    return done;
  }

  [[nodiscard]] int number() const { return number_; }

  [[nodiscard]] device::Communicators& communicators() { return *communicators_; }

  /// Advances until `done()`. Throws after a minute.
  template <typename Done>
  void advance_until(Done done, const char* what) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (true) {
      (void)communicators_->advance(now_);
      for (auto& event : communicators_->take_events()) {
        events.push_back(std::move(event));
      }
      if (done()) {
        return;
      }
      if (std::chrono::steady_clock::now() > limit) {
        throw std::runtime_error("member " + std::to_string(number_) + " waits too long for " + what);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  template <typename Event>
  [[nodiscard]] const Event* find() const {
    for (const auto& event : events) {
      if (const auto* found = std::get_if<Event>(&event)) {
        return found;
      }
    }
    return nullptr;
  }

  /// The first event of this kind, which is forgotten then.
  template <typename Event>
  Event await(const char* what) {
    advance_until([&] { return find<Event>() != nullptr; }, what);
    const auto found =
        std::ranges::find_if(events, [](const auto& event) { return std::holds_alternative<Event>(event); });
    Event event = std::get<Event>(*found);
    events.erase(found);
    return event;
  }

  std::vector<device::Communicators::Event> events;

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || !work_.empty(); });
      if (work_.empty()) {
        return;
      }
      std::packaged_task<void()> task = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  int number_;
  const TimePoint& now_;
  HostMemoryDevice device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> work_;
  bool stop_ = false;
  std::unique_ptr<device::Communicators> communicators_;
  std::thread thread_;
};

/// A communicator of a test, by the members that are in it.
struct TestGroup {
  std::string axis;
  std::vector<int> members;

  [[nodiscard]] std::string name() const {
    return plan::communicator_name({axis}, std::vector<std::int64_t>(members.begin(), members.end()));
  }
};

class NcclWorld {
 public:
  explicit NcclWorld(int size, device::CommunicatorSettings settings = small()) {
    for (int number = 0; number < size; ++number) {
      members_.push_back(std::make_unique<NcclMember>(fake, number, settings, now));
    }
  }

  /// No test makes a call that NCCL forbids.
  ~NcclWorld() {
    EXPECT_STREQ(fake.violations(), "");
    fake.reset();
  }

  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  /// Warms up with little, so that many ranks on few cores are quick.
  static device::CommunicatorSettings small() {
    device::CommunicatorSettings settings;
    settings.warm_up = {16, 10'000};
    return settings;
  }

  [[nodiscard]] NcclMember& member(int number) { return *members_[static_cast<std::size_t>(number)]; }

  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }

  /// On all members' threads at once. The first exception is thrown on, when all are done.
  void each(const std::function<void(NcclMember&)>& work) {
    std::vector<std::future<void>> done;
    for (const auto& member : members_) {
      done.push_back(member->on_thread([&work, one = member.get()] { work(*one); }));
    }
    std::exception_ptr first;
    for (std::future<void>& one : done) {
      try {
        one.get();
      } catch (...) {
        first = first ? first : std::current_exception();
      }
    }
    if (first) {
      std::rethrow_exception(first);
    }
  }

  static std::vector<device::CommunicatorSpec> specs_of(const std::vector<TestGroup>& groups, int member) {
    std::vector<device::CommunicatorSpec> specs;
    for (const TestGroup& group : groups) {
      const auto found = std::ranges::find(group.members, member);
      if (found != group.members.end()) {
        specs.push_back(
            {{group.axis},
             {group.members.begin(), group.members.end()},
             static_cast<std::uint32_t>(found - group.members.begin())}
        );
      }
    }
    return specs;
  }

  using Step = std::vector<device::PlannedCollective>;

  /// Loads the plan on all members, and says what they have to be told to connect.
  std::vector<device::CommunicatorId> load(
      device::PlanId plan, device::JobNumber job, const std::vector<TestGroup>& groups, const Step& step = {}
  ) {
    std::vector<std::vector<device::CommunicatorOffer>> offers(members_.size());
    each([&](NcclMember& member) {
      Step own;
      std::ranges::copy_if(step, std::back_inserter(own), [&](const device::PlannedCollective& one) {
        return std::ranges::any_of(groups, [&](const TestGroup& group) {
          return group.name() == one.communicator &&
                 std::ranges::find(group.members, member.number()) != group.members.end();
        });
      });
      offers[static_cast<std::size_t>(member.number())] =
          member.communicators().load(plan, job, specs_of(groups, member.number()), own, now);
    });
    std::vector<device::CommunicatorId> ids;
    for (const auto& of_member : offers) {
      for (const device::CommunicatorOffer& offer : of_member) {
        if (offer.id) {
          ids.push_back({offer.name, device::instance_of(*offer.id), offer.id});
        } else if (offer.instance && std::ranges::find(ids, offer.name, &device::CommunicatorId::name) == ids.end()) {
          ids.push_back({offer.name, *offer.instance, {}});
        }
      }
    }
    return ids;
  }

  static std::vector<device::CommunicatorId> ids_of(
      const std::vector<device::CommunicatorId>& ids, const std::vector<TestGroup>& groups, int member
  ) {
    std::vector<device::CommunicatorId> own;
    for (const TestGroup& group : groups) {
      if (std::ranges::find(group.members, member) != group.members.end()) {
        own.push_back(*std::ranges::find(ids, group.name(), &device::CommunicatorId::name));
      }
    }
    return own;
  }

  void connect(
      device::PlanId plan, const std::vector<TestGroup>& groups, const std::vector<device::CommunicatorId>& ids
  ) {
    each([&](NcclMember& member) {
      member.communicators().connect(plan, ids_of(ids, groups, member.number()), now);
      (void)member.await<device::Communicators::Connected>("its communicators");
    });
  }

  FakeNccl fake;
  TimePoint now{std::chrono::hours(1)};

 private:
  std::vector<std::unique_ptr<NcclMember>> members_;
};

}  // namespace gradsync::fakes
