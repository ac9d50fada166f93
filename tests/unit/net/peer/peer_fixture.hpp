#pragma once
// A daemon with links to others, on a thread of its own: a real server with a listener for links, and a sink that
// records. Every wait has a deadline.

#include "net/metrics.hpp"
#include "net/peer_links.hpp"
#include "net/server.hpp"
#include "unit/net/raw_client.hpp"
#include "unit/net/server_fixture.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gradsync::net {

inline constexpr const char* kPeerToken = "0123456789abcdef0123456789abcdef";
inline constexpr const char* kBeat = "beat";

/// Records all that it hears. What a test wants to do within a call is a hook of it.
class RecordingSink : public PeerSink {
 public:
  std::function<void(LinkId)> when_open;  ///< set on the io thread
  std::function<void(LinkId, std::string_view)> when_text;

  void on_link(LinkId link, const LinkEnds& ends) override {
    note([&] { opened_.emplace_back(link, ends); });
    if (when_open) {
      when_open(link);
    }
  }

  void on_text(LinkId link, std::string_view text) override {
    note([&] {
      EXPECT_FALSE(ends_.contains(link)) << "a text after the end";
      (text == kBeat ? beats_[link] : texts_[link]).emplace_back(text);
    });
    if (when_text) {
      when_text(link, text);
    }
  }

  void on_end(LinkId link, const std::string& why) override {
    note([&] { EXPECT_TRUE(ends_.emplace(link, why).second) << "two ends of link " << link; });
  }

  void on_data_link(DataLink link) override {
    note([&] { data_links_.push_back(std::move(link)); });
  }

  void on_data_connected(LinkId id, UniqueFd socket) override {
    note([&] { EXPECT_TRUE(dialled_.emplace(id, Dialled{std::move(socket), {}}).second) << "two ends of " << id; });
  }

  void on_data_failed(LinkId id, const std::string& why) override {
    note([&] { EXPECT_TRUE(dialled_.emplace(id, Dialled{UniqueFd{}, why}).second) << "two ends of " << id; });
  }

  /// The next data connection that another daemon opened; without a socket at the deadline.
  [[nodiscard]] DataLink data_link() {
    const auto lock = wait([&] { return !data_links_.empty(); });
    if (data_links_.empty()) {
      return {};
    }
    DataLink first = std::move(data_links_.front());
    data_links_.erase(data_links_.begin());
    return first;
  }

  [[nodiscard]] std::size_t data_link_count() {
    const std::scoped_lock lock{mutex_};
    return data_links_.size();
  }

  /// The socket of a data connection that this daemon opened, or none.
  [[nodiscard]] UniqueFd dialled(LinkId id) {
    const auto lock = wait([&] { return dialled_.contains(id); });
    return dialled_.contains(id) ? std::move(dialled_.at(id).socket) : UniqueFd{};
  }

  /// Why there is none; "no end" at the deadline.
  [[nodiscard]] std::string data_failure_of(LinkId id) {
    const auto lock = wait([&] { return dialled_.contains(id); });
    return dialled_.contains(id) ? dialled_.at(id).why : "no end";
  }

  /// The number of the nth link that opened, from 1; 0 where there is none at the deadline.
  [[nodiscard]] LinkId opened(std::size_t nth = 1) {
    const auto lock = wait([&] { return opened_.size() >= nth; });
    return opened_.size() < nth ? 0 : opened_[nth - 1].first;
  }

  [[nodiscard]] std::size_t open_count() {
    const std::scoped_lock lock{mutex_};
    return opened_.size();
  }

  [[nodiscard]] LinkEnds ends_of(LinkId link) {
    const std::scoped_lock lock{mutex_};
    const auto found =
        std::find_if(opened_.begin(), opened_.end(), [link](const auto& opened) { return opened.first == link; });
    return found == opened_.end() ? LinkEnds{} : found->second;
  }

  /// Once there are so many texts of the link, besides beats.
  [[nodiscard]] std::vector<std::string> texts(LinkId link, std::size_t count) {
    const auto lock = wait([&] { return texts_[link].size() >= count; });
    return texts_[link];
  }

  /// Once there are so many; false: not at the deadline.
  [[nodiscard]] bool beats(LinkId link, std::size_t count) {
    const auto lock = wait([&] { return beats_[link].size() >= count; });
    return beats_[link].size() >= count;
  }

  /// Why the link ended; "no end" at the deadline.
  [[nodiscard]] std::string end_of(LinkId link) {
    const auto lock = wait([&] { return ends_.contains(link); });
    const auto found = ends_.find(link);
    return found == ends_.end() ? "no end" : found->second;
  }

  [[nodiscard]] bool has_ended(LinkId link) {
    const std::scoped_lock lock{mutex_};
    return ends_.contains(link);
  }

  /// After the io thread has ended.
  void expect_one_end_each() {
    for (const auto& [link, ends] : opened_) {
      EXPECT_TRUE(ends_.contains(link)) << "no end of link " << link;
    }
  }

 private:
  struct Dialled {
    UniqueFd socket;
    std::string why;
  };

  template <typename Note>
  void note(const Note& take) {
    const std::scoped_lock lock{mutex_};
    take();
    changed_.notify_all();
  }

  /// With the lock, once it is so, or at the deadline.
  template <typename Condition>
  std::unique_lock<std::mutex> wait(const Condition& condition) {
    std::unique_lock lock{mutex_};
    changed_.wait_for(lock, std::chrono::seconds(60), condition);
    return lock;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<LinkId, LinkEnds>> opened_;
  std::map<LinkId, std::vector<std::string>> texts_;
  std::map<LinkId, std::vector<std::string>> beats_;
  std::map<LinkId, std::string> ends_;
  std::vector<DataLink> data_links_;
  std::map<LinkId, Dialled> dialled_;
};

class PeerDaemon {
 public:
  explicit PeerDaemon(ServerOptions options, PeerOptions peer_options = {})
      : metrics(registry),
        links(io, with_beat(std::move(peer_options)), sink, metrics),
        server(io, std::move(options), handlers, handlers, handlers, metrics, &links) {
    handlers.server = &server;
    links.use_token(kPeerToken);
    const auto failure = server.start();
    EXPECT_FALSE(failure.has_value()) << failure->message;
    thread_ = std::thread([this] { io.run(); });
  }

  PeerDaemon(const PeerDaemon&) = delete;
  PeerDaemon& operator=(const PeerDaemon&) = delete;

  /// Ends as the daemon does: everything closes, then the io thread has nothing left to do.
  ~PeerDaemon() {
    if (!stopped_) {
      on_io([this] {
        links.close_all();
        server.close_all();
      });
    }
    work_.reset();
    thread_.join();
    if (!stopped_) {
      sink.expect_one_end_each();
    }
  }

  /// Ends as the daemon does at a second signal: nothing is closed in order.
  void stop_at_once() {
    io.stop();
    stopped_ = true;
  }

  /// Runs on the io thread and waits for it.
  void on_io(const std::function<void()>& work) {
    std::promise<void> done;
    boost::asio::post(io, [&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }

  [[nodiscard]] std::string endpoint() const { return server.peer_endpoint(); }

  LinkId connect(const std::string& address) {
    LinkId link = 0;
    on_io([&] { link = links.connect(address); });
    return link;
  }

  LinkId connect_data(const std::string& address, const DataLinkHello& hello) {
    LinkId id = 0;
    on_io([&] { id = links.connect_data(address, hello); });
    return id;
  }

  void when_open(std::function<void(LinkId)> hook) {
    on_io([&] { sink.when_open = std::move(hook); });
  }

  void when_text(std::function<void(LinkId, std::string_view)> hook) {
    on_io([&] { sink.when_text = std::move(hook); });
  }

  void send(LinkId link, std::string text) {
    on_io([&] { links.send(link, std::move(text)); });
  }

  void join(LinkId link) {
    on_io([&] { links.joined(link); });
  }

  void close(LinkId link) {
    on_io([&] { links.close(link); });
  }

  void drop(LinkId link) {
    on_io([&] { links.drop(link); });
  }

  boost::asio::io_context io{1};
  EchoHandlers handlers;
  RecordingSink sink;
  prometheus::Registry registry;
  NetMetrics metrics;
  PeerLinks links;
  Server server;

 private:
  static PeerOptions with_beat(PeerOptions options) {
    options.beat_text = kBeat;
    if (options.join == PeerOptions{}.join) {
      options.join = Milliseconds{300'000};  // no test is about that, and sanitizers are slow
    }
    return options;
  }

  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{io.get_executor()};
  std::thread thread_;
  bool stopped_ = false;
};

class PeerTest : public testing::Test {
 protected:
  /// A daemon of its own for each name, at any free port.
  [[nodiscard]] ServerOptions options(const std::string& name = "a") const {
    ServerOptions options;
    options.socket_path = folder / (name + ".sock");
    options.health_address = "";
    options.peer_address = "127.0.0.1:0";
    options.peer_token_file = folder / "token";
    std::ofstream{options.peer_token_file} << kPeerToken << "\n";
    ::chmod(options.peer_token_file.c_str(), 0600);
    return options;
  }

  [[nodiscard]] static std::string bearer(const std::string& token = kPeerToken) {
    return "Authorization: Bearer " + token + "\r\n";
  }

  /// A client that knows the token.
  [[nodiscard]] static RawClient link_to(const PeerDaemon& daemon) {
    RawClient client = RawClient::tcp(daemon.endpoint());
    EXPECT_EQ(client.upgrade("gradsync.peer.v1.jsonrpc", "/peer", bearer()).status, 101);
    return client;
  }

  /// Waits for a close frame, past texts and beats; 0: the connection ended without one.
  [[nodiscard]] static int close_code_of(RawClient& client) {
    Frame frame = client.read_frame();
    while (frame.opcode >= 0 && frame.opcode != 8) {
      frame = client.read_frame();
    }
    return frame.opcode < 0 ? 0 : frame.close_code();
  }

  TempFolder folder;
};

}  // namespace gradsync::net
