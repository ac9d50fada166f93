#include "net/peer/resolver.hpp"

#include "base/older_runtime.hpp"
#include "base/thread_name.hpp"

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <netdb.h>
#include <thread>

namespace gradsync::net {

namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

using AddressList = std::unique_ptr<addrinfo, FreeAddresses>;

/// 0 and a list, or the error of getaddrinfo.
int get_addresses(const std::string& host, std::uint16_t port, int flags, AddressList& list) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  list.reset(error == 0 ? found : nullptr);
  return error;
}

NumericAddress copy_of(const addrinfo& found) {
  NumericAddress address;
  address.size = std::min<socklen_t>(found.ai_addrlen, sizeof address.storage);
  std::memcpy(&address.storage, found.ai_addr, address.size);
  return address;
}

}  // namespace

Resolved look_up_name(const std::string& host, std::uint16_t port) {
  Resolved resolved;
  AddressList list;
  if (const int error = get_addresses(host, port, 0, list); error != 0) {
    resolved.why = fmt::format("'{}' has no address: {}", host, ::gai_strerror(error));
    return resolved;
  }
  for (const addrinfo* found = list.get(); found != nullptr && resolved.addresses.size() < Resolver::kMostAddresses;
       found = found->ai_next) {
    resolved.addresses.push_back(copy_of(*found));
  }
  return resolved;
}

std::optional<NumericAddress> numeric_address(const std::string& host, std::uint16_t port) {
  AddressList list;
  return get_addresses(host, port, AI_NUMERICHOST, list) == 0 ? std::optional(copy_of(*list)) : std::nullopt;
}

struct Resolver::State : std::enable_shared_from_this<State> {
  using Name = std::pair<std::string, std::uint16_t>;

  struct Waiting {
    Query query = 0;
    Done done;
  };

  State(asio::io_context& io_context, NameLookup used) : io(io_context), lookup(std::move(used)) {}

  void run() {
    name_this_thread("resolver");
    std::unique_lock lock{mutex};
    while (!stopping) {
      if (queue.empty()) {
        changed.wait(lock);
        continue;
      }
      const Name name = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      Resolved resolved = looked_up(name);
      lock.lock();
      if (!stopping) {  // with the lock, so that `io` is there
        post_answer(name, std::move(resolved));
      }
    }
    ended = true;
    changed.notify_all();
  }

  /// Whatever a lookup throws costs that name and no more.
  [[nodiscard]] Resolved looked_up(const Name& name) const {
    try {
      return lookup(name.first, name.second);
    } catch (const std::exception& problem) {
      return {{}, fmt::format("'{}' is not resolved: {}", name.first, problem.what())};
    }
  }

  void post_answer(const Name& name, Resolved resolved) {
    asio::post(io, [weak = weak_from_this(), name, moved = std::move(resolved)] {
      if (const auto self = weak.lock()) {
        self->answer(name, moved);
      }
    });
  }

  /// On the io thread.
  void answer(const Name& name, const Resolved& resolved) {
    const auto found = asked.extract(name);
    if (found) {
      for (const Waiting& waiting : found.mapped()) {
        waiting.done(resolved);
      }
    }
  }

  asio::io_context& io;
  const NameLookup lookup;
  // These need the lock.
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Name> queue;
  bool stopping = false;
  bool ended = false;
  // The io thread alone has these.
  std::thread thread;
  std::map<Name, std::vector<Waiting>> asked;  ///< also the one under way, where nobody waits for it any more
  Query last = 0;
};

Resolver::Resolver(asio::io_context& io, NameLookup lookup) : state_(std::make_shared<State>(io, std::move(lookup))) {}

Resolver::~Resolver() { stop(); }

Resolver::Query Resolver::resolve(std::string host, std::uint16_t port, Done done) {
  State& state = *state_;
  const Query query = ++state.last;
  const auto [at, first] = state.asked.try_emplace(State::Name(std::move(host), port));
  at->second.push_back({query, std::move(done)});
  if (!first) {
    return query;
  }
  if (!state.thread.joinable()) {
    try {
      state.thread = std::thread([self = state_] { self->run(); });
    } catch (const std::exception& problem) {
      state.post_answer(
          at->first,
          {{}, fmt::format("'{}' is not resolved, for want of a thread: {}", at->first.first, problem.what())}
      );
      return query;
    }
  }
  const std::scoped_lock lock{state.mutex};
  state.queue.push_back(at->first);
  state.changed.notify_all();
  return query;
}

void Resolver::forget(Query query) {
  State& state = *state_;
  for (auto& [name, waiting] : state.asked) {
    if (std::erase_if(waiting, [query](const State::Waiting& each) { return each.query == query; }) > 0) {
      const std::scoped_lock lock{state.mutex};
      if (waiting.empty() && std::erase(state.queue, name) > 0) {
        state.asked.erase(name);
      }
      return;
    }
  }
}

void Resolver::stop() {
  State& state = *state_;
  state.asked.clear();
  bool ended = false;
  {
    std::unique_lock lock{state.mutex};
    state.stopping = true;
    state.queue.clear();
    state.changed.notify_all();
    ended = !state.thread.joinable() || state.changed.wait_for(lock, kPatience, [&state] { return state.ended; });
  }
  if (!state.thread.joinable()) {
    return;
  }
  if (ended) {
    state.thread.join();
  } else {
    state.thread.detach();  // it hangs in the system's resolver
  }
}

}  // namespace gradsync::net
