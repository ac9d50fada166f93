#include "fakes/libnccl/fake_world.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <stdexcept>

namespace gradsync::fakes {

namespace {

FakeMemory* map(int fd) {
  void* const address = ::mmap(nullptr, sizeof(FakeMemory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  (void)::close(fd);
  if (address == MAP_FAILED) {
    throw std::runtime_error("the memory of a fake communicator cannot be mapped");
  }
  return static_cast<FakeMemory*>(address);
}

}  // namespace

std::string FakeWorld::create() {
  static std::atomic<int> made = 0;
  const std::string name = "/gradsync-fake-nccl-" + std::to_string(::getpid()) + "-" + std::to_string(++made);
  const int fd = ::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, sizeof(FakeMemory)) != 0) {
    throw std::runtime_error("no memory for a fake communicator: " + std::to_string(errno));
  }
  (void)::close(fd);  // zeros are a world that nobody has come to
  return name;
}

void FakeWorld::remove(const std::string& name) { (void)::shm_unlink(name.c_str()); }

FakeWorld::FakeWorld(const std::string& name) {
  const int fd = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) {
    throw std::runtime_error("no root answers to this id: it was used, or its process has ended");
  }
  memory_ = map(fd);
}

FakeWorld::~FakeWorld() { (void)::munmap(memory_, sizeof(FakeMemory)); }

std::string FakeWorld::join(int ranks, int rank) {
  std::uint32_t expected = 0;
  const auto size = static_cast<std::uint32_t>(ranks);
  if (!memory_->ranks.compare_exchange_strong(expected, size) && expected != size) {
    return "this member says that there are " + std::to_string(ranks) + " ranks, another one " +
           std::to_string(expected);
  }
  std::int32_t nobody = 0;
  if (!memory_->seats[rank].process.compare_exchange_strong(nobody, ::getpid())) {
    return "rank " + std::to_string(rank) + " has come to this id already";
  }
  ++memory_->joined;
  return "";
}

int FakeWorld::gone() const {
  const auto ranks = static_cast<int>(memory_->ranks.load());
  for (int rank = 0; rank < ranks; ++rank) {
    const FakeSeat& seat = memory_->seats[rank];
    const std::int32_t process = seat.process;
    if (seat.left != 0 || (process != 0 && ::kill(process, 0) != 0 && errno == ESRCH)) {
      return rank;
    }
  }
  return -1;
}

}  // namespace gradsync::fakes
