// NCCL's functions for two ranks over a unix socket, for the emulation: sums are right, and a rank that stopped or died
// is felt as late as with NCCL. Found by dlsym in the program itself.

#include "gpu/experiments/nccl_library.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace gradsync::experiments {

/// Defined in fake_cuda.cpp. Runs `work(argument)` when the stream comes to it.
void enqueue_on_fake_stream(cudaStream_t stream, void (*work)(void*), void* argument);

namespace {

constexpr int kRemoteError = 6;

struct Communicator {
  int rank;
  std::string name;
  std::atomic<int> state{kNcclInProgress};
  std::atomic<bool> aborted{false};
  std::atomic<int> socket{-1};
};

struct Reduction {
  Communicator* communicator;
  float* values;
  std::size_t count;
};

sockaddr_un address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // The first byte stays zero: a name outside the file system.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return address;
}

void connect_ranks(Communicator* one) {
  const sockaddr_un address = address_of(one->name);
  const auto* at = reinterpret_cast<const sockaddr*>(&address);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (one->rank == 0) {
    (void)bind(socket, at, sizeof(address));
    (void)listen(socket, 1);
    pollfd entry{socket, POLLIN, 0};
    while (!one->aborted && poll(&entry, 1, 10) == 0) {
    }
    one->socket = one->aborted ? -1 : accept4(socket, nullptr, nullptr, SOCK_CLOEXEC);
    (void)close(socket);
  } else {
    while (!one->aborted && connect(socket, at, sizeof(address)) != 0) {
      (void)usleep(1000);
    }
    one->socket = socket;
  }
  one->state = one->aborted ? kRemoteError : kNcclSuccess;
}

/// False when the other end is gone or the communicator was aborted.
bool exchange(Communicator* one, const float* ours, float* theirs, std::size_t count) {
  const std::size_t bytes = count * sizeof(float);
  std::size_t sent = 0;
  std::size_t received = 0;
  while (sent < bytes || received < bytes) {
    if (one->aborted) {
      return false;
    }
    pollfd entry{one->socket, static_cast<short>(POLLIN | (sent < bytes ? POLLOUT : 0)), 0};
    (void)poll(&entry, 1, 10);
    if ((entry.revents & POLLIN) != 0) {
      const ssize_t got = recv(one->socket, reinterpret_cast<char*>(theirs) + received, bytes - received, MSG_DONTWAIT);
      if (got <= 0) {
        return false;
      }
      received += static_cast<std::size_t>(got);
    } else if ((entry.revents & POLLOUT) != 0) {
      const ssize_t put =
          send(one->socket, reinterpret_cast<const char*>(ours) + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (put < 0) {
        return false;
      }
      sent += static_cast<std::size_t>(put);
    } else if ((entry.revents & POLLHUP) != 0) {
      return false;
    }
  }
  return true;
}

void reduce(void* argument) {
  auto* const reduction = static_cast<Reduction*>(argument);
  Communicator* one = reduction->communicator;
  constexpr std::size_t kPiece = 16384;
  std::vector<float> theirs(kPiece);
  for (std::size_t first = 0; first < reduction->count; first += kPiece) {
    const std::size_t count = std::min(kPiece, reduction->count - first);
    if (!exchange(one, reduction->values + first, theirs.data(), count)) {
      // As with NCCL: the work ends, and the rest of the buffer is what it was.
      one->state = one->aborted ? one->state.load() : kRemoteError;
      break;
    }
    for (std::size_t i = 0; i < count; ++i) {
      reduction->values[first + i] += theirs[i];
    }
  }
  delete reduction;
}

}  // namespace
}  // namespace gradsync::experiments

using gradsync::experiments::Communicator;

extern "C" {

int ncclGetVersion(int* version) {
  *version = 0;
  return 0;
}

int ncclGetUniqueId(gradsync::experiments::NcclUniqueId* id) {
  static int made = 0;
  *id = {};
  (void)std::snprintf(id->bytes, sizeof(id->bytes), "gradsync-fake-nccl-%d-%d", getpid(), ++made);
  return 0;
}

int ncclCommInitRankConfig(void** communicator, int /*ranks*/, gradsync::experiments::NcclUniqueId id, int rank, gradsync::experiments::NcclConfig*) {
  auto* const one = new Communicator{.rank = rank, .name = id.bytes};
  *communicator = one;
  std::thread(gradsync::experiments::connect_ranks, one).detach();
  return gradsync::experiments::kNcclInProgress;
}

int ncclAllReduce(const void*, void* to, std::size_t count, int, int, void* communicator, cudaStream_t stream) {
  auto* const work =
      new gradsync::experiments::Reduction{static_cast<Communicator*>(communicator), static_cast<float*>(to), count};
  gradsync::experiments::enqueue_on_fake_stream(stream, gradsync::experiments::reduce, work);
  return 0;
}

int ncclCommGetAsyncError(void* communicator, int* state) {
  *state = static_cast<Communicator*>(communicator)->state;
  return 0;
}

int ncclCommFinalize(void*) { return 0; }

// Kept: work on a stream may still look at it.
int ncclCommAbort(void* communicator) {
  auto* const one = static_cast<Communicator*>(communicator);
  one->aborted = true;
  if (one->socket >= 0) {
    (void)shutdown(one->socket, SHUT_RDWR);
  }
  return 0;
}

int ncclCommDestroy(void* communicator) { return ncclCommAbort(communicator); }

const char* ncclGetLastError(void*) { return "no words"; }

const char* ncclGetErrorString(int result) { return result == 0 ? "no error" : "fake error"; }

}  // extern "C"
