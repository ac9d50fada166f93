#pragma once
// A real server on its own thread, with handlers that echo and record. Sockets in a fresh folder, ports of the system's
// choice, every wait with a deadline.

#include "net/metrics.hpp"
#include "net/server.hpp"
#include "unit/net/raw_client.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace gradsync::net {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "gradsync-net-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }

  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  ~TempFolder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// Echoes texts and bodies. "flood" sends without end, "bye" answers and closes, "throw" throws, "costly" computes for
/// `kCostly` and is refused.
class EchoHandlers : public MessageHandler, public PageHandler, public FdHandler {
 public:
  static constexpr std::chrono::milliseconds kCostly{30};
  static constexpr int kItems = 64;

  bool watch_on = true;  ///< answer of on_close
  bool everybody_initialized = true;

  Server* server = nullptr;
  std::map<ConnectionId, int> items_left;  ///< of a batch
  int post_items_left = kItems;

  void on_open(ConnectionId connection, const PeerIdentity& peer) override {
    note(fmt::format("open {} local={} uid={} token={}", connection, peer.local, peer.uid, name_of(peer.token)));
  }

  bool on_text(ConnectionId connection, std::string_view text) override {
    if (text == "flood") {
      for (int i = 0; i < 64; ++i) {
        server->send(connection, std::string(1 << 20, 'x'));
      }
    } else if (text == "bye") {
      server->send(connection, "first");
      server->send(connection, "last");
      server->close(connection, "told to go");
      server->send(connection, "never");
    } else if (text == "batch") {
      items_left[connection] = kItems;
    } else if (text == "throw") {
      throw std::runtime_error("thrown by the handler");
    } else if (text == "costly") {
      compute(kCostly);
      note(fmt::format("costly {}", connection));
      return false;
    } else {
      server->send(connection, std::string(text));
    }
    return true;
  }

  [[nodiscard]] bool has_more(ConnectionId connection) const override { return items_left.contains(connection); }

  void go_on(ConnectionId connection) override {
    note(fmt::format("item {}", connection));
    if (--items_left[connection] == 0) {
      items_left.erase(connection);
      server->send(connection, "batch done");
    }
  }

  bool initialized(ConnectionId connection) override {
    note(fmt::format("initialized? {}", connection));
    return everybody_initialized;
  }

  void on_drained(ConnectionId connection) override {
    note(fmt::format("drained {} {}", connection, server->drained(connection)));
  }

  bool on_close(ConnectionId connection) override {
    note(fmt::format("close {}", connection));
    return watch_on;
  }

  void on_process_exit(ConnectionId connection) override { note(fmt::format("exit {}", connection)); }

  PostReply on_post(const PeerIdentity& peer, std::string_view body) override {
    if (body == "batch") {
      note("item of a POST");
      return {200, "", [this] { return on_post({}, --post_items_left > 0 ? "batch" : "the rest"); }};
    }
    if (body == "quiet") {
      return {204, ""};
    }
    return {200, fmt::format("{} {} {}", peer.local, name_of(peer.token), body)};
  }

  std::optional<HttpReply> on_get(const PageRequest& request) override {
    const auto& [path, query, accept, trusted] = request;
    if (path == "/file") {
      HttpReply file{200, "text/html", fmt::format("accept={} trusted={}", accept, trusted)};
      file.content_policy = "default-src 'none'";
      return file;
    }
    if (path != "/page" && path != "/shell" && path != "/metrics") {
      return std::nullopt;
    }
    return HttpReply{query == "bad" ? 503 : 200, "text/plain", fmt::format("query={} trusted={}", query, trusted)};
  }

  [[nodiscard]] PageAccess access(const PageRequest& request) const override {
    const std::string_view path = request.path;
    if (path == "/shell" || path == "/file" || (path == "/" && request.accept == "text/html")) {
      return PageAccess::Shell;
    }
    return path == "/metrics" ? PageAccess::Daemon : PageAccess::Jobs;
  }

  bool takes_descriptor(const std::string& token, const PeerIdentity& /*peer*/) override { return token == "mine"; }

  Result<TakenFd> on_fd_request(const std::string& token, const PeerIdentity& peer, UniqueFd given) override {
    note(fmt::format("token {} uid={}", token, peer.uid));
    if (token == "mine") {
      struct stat found {};

      const bool arrived = given.valid() && ::fstat(given.get(), &found) == 0;
      return arrived ? Result<TakenFd>(TakenFd{UniqueFd{}, static_cast<std::uint64_t>(found.st_size)})
                     : make_error(ErrorCode::BadToken, "no descriptor came");
    }
    if (token != "good") {
      return make_error(ErrorCode::BadToken, "no such token");
    }
    TakenFd taken;
    taken.fd.reset(::memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    taken.size_bytes = 4096;
    EXPECT_EQ(::ftruncate(taken.fd.get(), 4096), 0);
    EXPECT_EQ(::fcntl(taken.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    return taken;
  }

  std::string error_line(const Error& error) override {
    return fmt::format(R"({{"error":{{"message":"{}","data":{{"kind":"{}"}}}}}})", error.message, kind_of(error.code));
  }

  [[nodiscard]] std::vector<std::string> all() {
    const std::scoped_lock lock{mutex_};
    return notes_;
  }

  /// Waits until `text` was noted; false at the deadline.
  [[nodiscard]] bool saw(const std::string& text) {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] {
      return std::find(notes_.begin(), notes_.end(), text) != notes_.end();
    });
  }

  [[nodiscard]] std::ptrdiff_t count(const std::string& text) {
    const std::scoped_lock lock{mutex_};
    return std::count(notes_.begin(), notes_.end(), text);
  }

 private:
  static const char* name_of(TokenRole role) {
    return role == TokenRole::Operator ? "operator" : role == TokenRole::Reader ? "reader" : "none";
  }

  void note(std::string text) {
    const std::scoped_lock lock{mutex_};
    notes_.push_back(std::move(text));
    changed_.notify_all();
  }

  static void compute(std::chrono::milliseconds for_time) {
    const auto used = [] {
      timespec now{};
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
    };
    const auto end = used() + for_time;
    while (used() < end) {
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> notes_;
};

class RunningServer {
 public:
  explicit RunningServer(ServerOptions options, bool expect_start = true)
      : metrics(registry), server(io, std::move(options), handlers, handlers, handlers, metrics) {
    handlers.server = &server;
    failure = server.start();
    if (expect_start) {
      EXPECT_FALSE(failure.has_value()) << failure->message;
    }
    thread_ = std::thread([this] { io.run(); });
  }

  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

  /// Ends as the daemon does: everything closes, then the io thread has nothing left to do.
  ~RunningServer() {
    if (!stopped_) {
      on_io([this] { server.close_all(); });
    }
    work_.reset();
    thread_.join();
  }

  /// Ends as the daemon does at a second signal: nothing is closed in order.
  void stop_at_once() {
    io.stop();
    stopped_ = true;
  }

  /// Runs on the io thread and waits for it.
  void on_io(std::function<void()> work) {
    std::promise<void> done;
    boost::asio::post(io, [&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }

  boost::asio::io_context io{1};
  EchoHandlers handlers;
  prometheus::Registry registry;
  NetMetrics metrics;
  Server server;
  std::optional<StartFailure> failure;

 private:
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{io.get_executor()};
  std::thread thread_;
  bool stopped_ = false;
};

class ServerTest : public testing::Test {
 protected:
  [[nodiscard]] ServerOptions options() const {
    ServerOptions options;
    options.socket_path = folder / "gradsync.sock";
    options.health_address = "127.0.0.1:0";
    return options;
  }

  [[nodiscard]] RawClient connect() const { return RawClient::unix_socket(folder / "gradsync.sock"); }

  [[nodiscard]] RawClient websocket() const {
    RawClient client = connect();
    EXPECT_EQ(client.upgrade("gradsync.v1.jsonrpc").status, 101);
    return client;
  }

  TempFolder folder;
};

}  // namespace gradsync::net
