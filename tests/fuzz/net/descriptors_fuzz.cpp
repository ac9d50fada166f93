// What comes in over the fd socket with its descriptors (SCM_RIGHTS): the real listener and session, and the engine
// behind them. The input is options and a script for up to two connections at once:
//   options    1: the tokens of the first buffers are for memory handed back, else for memory fetched
//   command    verb | connection << 3 | closed << 4 | options, then what the verb takes
//   0 piece    a byte: how many descriptors, a byte: of which kind, a byte of length, the bytes: one sendmsg
//   1 token    a byte: how many descriptors, a byte: of which kind, a byte: whose token; it and the end of its line
//   2 half     the same, and of the token all but the last byte
//   3 end      nothing more is sent
//   4 refuse   the receiver has no descriptor numbers left for the next piece
// Kinds: sealed memory of the right size, unsealed, too small, a pipe, /dev/null, a socket, what was fetched, mixed.
//
// Every answer is one line of JSON, or the connection ends without one because the line was never ended; nothing that
// came along stays open unless it is a buffer, and what became a buffer has the seals and the size.

#include "engine/engine.hpp"
#include "engine/metrics.hpp"
#include "fakes/inline_planner.hpp"
#include "fakes/recording_lane.hpp"
#include "fuzz/net/sockets.hpp"
#include "net/metrics.hpp"
#include "net/server.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <optional>
#include <vector>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

constexpr std::uint64_t kBytes = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::size_t kTokens = 4;
constexpr std::size_t kMostDescriptors = 253;  // of one message, as the kernel has it

UniqueFd memory(std::uint64_t bytes, int seals) {
  UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

/// Handed to whoever asks, over and over: what is received is another descriptor of it.
class Kinds {
 public:
  Kinds() {
    int pipe[2] = {-1, -1};
    int pair[2] = {-1, -1};
    REQUIRE(::pipe2(pipe, O_CLOEXEC) == 0);
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    kinds_[0] = memory(kBytes, kSeals);
    kinds_[1] = memory(kBytes, F_SEAL_SHRINK);
    kinds_[2] = memory(kBytes / 2, kSeals);
    kinds_[3].reset(pipe[0]);
    kinds_[4].reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
    kinds_[5].reset(pair[0]);
    other_ends_[0].reset(pipe[1]);
    other_ends_[1].reset(pair[1]);
  }

  /// The buffer of one engine may not be that of another: adopted memory is new every time.
  void renew() { kinds_[0] = memory(kBytes, kSeals); }

  [[nodiscard]] int of(std::size_t kind) const { return kinds_[kind % kinds_.size()].get(); }

 private:
  std::array<UniqueFd, 6> kinds_;
  std::array<UniqueFd, 2> other_ends_;
};

/// A fresh engine with one rank, whose tokens the script uses.
class Owner {
 public:
  explicit Owner(bool adopts) : adopts_(adopts) {
    engine_.advance(now_);
    const auto pid = static_cast<std::int64_t>(::getpid());
    const Result<engine::AttachResult> attached =
        engine_.attach({"j", ::getuid(), pid, "f", 0, 1, {{"m", {{"dp", 1}}, {}}}, 0});
    REQUIRE(attached.has_value());
    for (std::string& token : tokens) {
      const auto granted =
          adopts ? engine_.adopt(attached->session, kBytes) : engine_.allocate(attached->session, kBytes);
      REQUIRE(granted.has_value());
      token = granted->token;
    }
  }

  Result<engine::TakenFd> exchange(const std::string& token, const net::PeerIdentity& peer, UniqueFd given) {
    const int number = given.get();
    const bool sealed = given.valid() && ::fcntl(number, F_GET_SEALS) == kSeals;

    struct stat status {};

    const bool sized = given.valid() && ::fstat(number, &status) == 0 && status.st_size == kBytes;
    Result<engine::TakenFd> taken = engine_.exchange_fd(token, peer.uid, peer.pid, std::move(given));
    if (taken) {
      REQUIRE(std::find(tokens.begin(), tokens.end(), token) != tokens.end());
      REQUIRE(taken->size_bytes == kBytes && taken->fd.valid() != adopts_);
      REQUIRE(!adopts_ || (sealed && sized));
    }
    while (!lane_.commands.empty()) {
      engine_.on_lane_report(device::kHostLane, lane_.answer_next());
    }
    return taken;
  }

  [[nodiscard]] bool awaits_fd(const std::string& token, const net::PeerIdentity& peer) const {
    return engine_.awaits_fd(token, peer.uid, peer.pid);
  }

  std::array<std::string, kTokens> tokens;

 private:
  static engine::EngineOptions options() {
    engine::EngineOptions options;
    options.limits.arena_bytes = 1u << 16;
    return options;
  }

  bool adopts_;
  TimePoint now_{};
  prometheus::Registry registry_;
  engine::EngineMetrics metrics_{registry_};
  fakes::RecordingLane lane_;
  fakes::InlinePlanner planner_;
  engine::Engine engine_{options(), engine::Lanes(lane_), planner_, [](const engine::Event&) {}, metrics_};
};

class Handlers : public net::MessageHandler, public net::PageHandler, public net::FdHandler {
 public:
  std::optional<Owner> owner;

  void on_open(net::ConnectionId, const net::PeerIdentity&) override { REQUIRE(false); }

  bool on_text(net::ConnectionId, std::string_view) override { return false; }

  bool initialized(net::ConnectionId) override { return true; }

  void on_drained(net::ConnectionId) override {}

  bool on_close(net::ConnectionId) override { return false; }

  void on_process_exit(net::ConnectionId) override {}

  PostReply on_post(const net::PeerIdentity&, std::string_view) override { return {}; }

  [[nodiscard]] net::PageAccess access(const net::PageRequest&) const override { return net::PageAccess::Jobs; }

  std::optional<net::HttpReply> on_get(const net::PageRequest&) override { return std::nullopt; }

  bool takes_descriptor(const std::string& token, const net::PeerIdentity& peer) override {
    return owner->awaits_fd(token, peer);
  }

  Result<TakenFd> on_fd_request(const std::string& token, const net::PeerIdentity& peer, UniqueFd given) override {
    REQUIRE(peer.local && peer.uid == ::getuid() && peer.pid == ::getpid());
    REQUIRE(!given.valid() || (::fcntl(given.get(), F_GETFD) & FD_CLOEXEC) != 0);
    Result<engine::TakenFd> taken = owner->exchange(token, peer, std::move(given));
    if (!taken) {
      return taken.error();
    }
    return TakenFd{std::move(taken->fd), taken->size_bytes};
  }

  std::string error_line(const Error& error) override {
    REQUIRE(!error.message.empty());
    return fmt::format("{{\"error\":\"{}\"}}", kind_of(error.code));
  }
};

/// The receiver has no descriptor numbers left, while it lives.
class Exhausted {
 public:
  explicit Exhausted(bool exhausted) : exhausted_(exhausted) {
    if (exhausted_) {
      REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
      rlimit none = before_;
      none.rlim_cur = 0;
      REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    }
  }

  Exhausted(const Exhausted&) = delete;
  Exhausted& operator=(const Exhausted&) = delete;

  ~Exhausted() {
    if (exhausted_) {
      REQUIRE(::setrlimit(RLIMIT_NOFILE, &before_) == 0);
    }
  }

 private:
  bool exhausted_;
  rlimit before_{};
};

class Script {
 public:
  explicit Script(std::string_view bytes) : bytes_(bytes) {}

  [[nodiscard]] bool empty() const { return bytes_.empty(); }

  std::uint8_t byte() {
    const std::uint8_t value = bytes_.empty() ? 0 : static_cast<std::uint8_t>(bytes_[0]);
    bytes_.remove_prefix(bytes_.empty() ? 0 : 1);
    return value;
  }

  std::string_view text(std::size_t length) {
    const std::string_view piece = bytes_.substr(0, length);
    bytes_.remove_prefix(piece.size());
    return piece;
  }

 private:
  std::string_view bytes_;
};

class World {
 public:
  World() {
    REQUIRE(!server_.start().has_value());
    fuzz::settle(io_);
    descriptors_ = fuzz::open_descriptors();
  }

  void run(Script script) {
    kinds_.renew();
    refuse_next_ = false;
    handlers_.owner.emplace((script.byte() & 1) != 0);
    for (int commands = 0; !script.empty() && commands < 32; ++commands) {
      command(script);
    }
    for (std::optional<fuzz::ClientSocket>& client : clients_) {
      if (client) {
        finish(*client);
        client.reset();
      }
    }
    fuzz::settle_until(io_, [&] { return metrics_.connections.Value() == 0; });
    handlers_.owner.reset();
    last_.reset();
    // The server closes what others may have had a hand in on a thread of its own, after a goodbye.
    fuzz::wait_until(io_, [&] { return fuzz::open_descriptors() == descriptors_; });
  }

 private:
  void command(Script& script) {
    const std::uint8_t head = script.byte();
    const unsigned verb = head % 8;
    std::optional<fuzz::ClientSocket>& client = clients_[head >> 3 & 1];
    if (!client) {
      client.emplace(folder_ / "s.fd.sock");
      fuzz::settle(io_);
    }
    if (verb == 3) {
      client->finish_sending();
      fuzz::settle(io_);
    } else if (verb == 4) {
      refuse_next_ = true;
    } else if (verb <= 2) {
      const std::size_t count = script.byte();
      const std::size_t kind = script.byte();
      const std::uint8_t last = script.byte();
      std::string line(script.text(verb == 0 ? last : 0));
      if (verb != 0) {
        line = handlers_.owner->tokens[last % kTokens] + "\n";
        line.resize(verb == 2 ? line.size() - 2 : line.size());
      }
      send(*client, line, count % (kMostDescriptors + 1), kind);
    }
    if ((head & 16) != 0) {
      finish(*client);
      client.reset();
    }
  }

  /// Not all of it may go out: the server may have closed.
  void send(const fuzz::ClientSocket& client, std::string line, std::size_t count, std::size_t kind) {
    if (line.empty()) {
      return;  // no byte, no message
    }
    std::vector<int> given;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t which = kind % 8 == 7 ? i + kind / 8 : kind % 8;
      given.push_back(which % 8 == 6 && last_.valid() ? last_.get() : kinds_.of(which));
    }
    iovec data{line.data(), line.size()};
    std::vector<char> control(CMSG_SPACE(sizeof(int) * count));
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (count > 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * count);
      std::memcpy(CMSG_DATA(header), given.data(), sizeof(int) * count);
    }
    static_cast<void>(::sendmsg(client.fd(), &message, MSG_NOSIGNAL));
    const Exhausted exhausted(std::exchange(refuse_next_, false));
    fuzz::settle(io_);
  }

  /// Reads the answer with what came along, and sees to it that there is but one.
  void finish(const fuzz::ClientSocket& client) {
    client.finish_sending();
    std::string answer;
    UniqueFd fetched;
    bool ended = false;
    fuzz::settle_until(io_, [&] {
      while (!ended) {
        char chunk[512];
        iovec data{chunk, sizeof chunk};
        alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
        msghdr message{};
        message.msg_iov = &data;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        const ssize_t bytes = ::recvmsg(client.fd(), &message, MSG_CMSG_CLOEXEC);
        if (bytes < 0 && errno == EAGAIN) {
          return false;
        }
        ended = bytes <= 0;
        answer.append(chunk, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
        if (const cmsghdr* header = bytes > 0 ? CMSG_FIRSTHDR(&message) : nullptr) {
          REQUIRE(header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int)) && !fetched.valid());
          int value = -1;
          std::memcpy(&value, CMSG_DATA(header), sizeof value);
          fetched.reset(value);
        }
      }
      return true;
    });
    const bool grants = answer == fmt::format("{{\"bytes\":{}}}\n", kBytes);
    const bool refuses = answer.starts_with("{\"error\":\"") && answer.find('\n') == answer.size() - 1;
    REQUIRE(answer.empty() || grants || refuses);
    if (fetched.valid()) {
      struct stat status {};

      REQUIRE(grants && ::fstat(fetched.get(), &status) == 0 && status.st_size >= static_cast<off_t>(kBytes));
      last_ = std::move(fetched);
    }
  }

  net::ServerOptions options() const {
    net::ServerOptions options;
    options.socket_path = folder_ / "s.sock";
    options.health_address = "";
    return options;
  }

  fuzz::Folder folder_;
  boost::asio::io_context io_{1};
  Handlers handlers_;
  prometheus::Registry registry_;
  net::NetMetrics metrics_{registry_};
  net::Server server_{io_, options(), handlers_, handlers_, handlers_, metrics_};
  Kinds kinds_;
  std::size_t descriptors_ = 0;  ///< open between two inputs
  std::array<std::optional<fuzz::ClientSocket>, 2> clients_;
  bool refuse_next_ = false;
  UniqueFd last_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool kQuiet = (spdlog::set_level(spdlog::level::off), true);
  static_cast<void>(kQuiet);
  static World world;
  world.run(Script(fuzz::text_of(data, size)));
  return 0;
}
