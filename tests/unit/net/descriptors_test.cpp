#include "net/socket/peer_socket.hpp"
#include "unit/net/server_fixture.hpp"

#include <sys/socket.h>

#include <arpa/inet.h>
#include <cstring>
#include <netinet/in.h>

namespace gradsync::net {
namespace {

/// A TCP socket whose last close waits for an hour: it has unsent data and SO_LINGER, and its peer does not read.
class Lingering {
 public:
  Lingering() {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int few = 4096;
    ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &few, sizeof few);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    socket_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    peer_.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string data(1 << 16, 'x');
    while (::send(socket_.get(), data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
    linger(3'600);
  }

  Lingering(const Lingering&) = delete;
  Lingering& operator=(const Lingering&) = delete;

  ~Lingering() { linger(0); }  // every wait for a copy of it ends with `peer_`, which has unread data

  /// Sends it along with a text and forgets it, so that the copy that travels is the last. False: the system does not
  /// let it through.
  [[nodiscard]] bool pass_on(const RawClient& client, std::string text) {
    iovec data{text.data(), text.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = socket_.get();
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (::sendmsg(client.fd(), &message, MSG_NOSIGNAL) < 0) {
      return false;
    }
    socket_.reset();
    return true;
  }

 private:
  void linger(int seconds) const {
    const struct linger setting {
      1, seconds
    };

    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &setting, sizeof setting);
  }

  UniqueFd peer_;
  UniqueFd socket_;
};

/// Descriptors that a peer sends to the main socket: of a kernel that keeps them away, and of an older one.
class SentDescriptors : public ServerTest, public testing::WithParamInterface<bool> {
 protected:
  [[nodiscard]] ServerOptions kernel() const {
    ServerOptions chosen = options();
    chosen.kernel_refuses_descriptors = GetParam();
    return chosen;
  }

  /// On the io thread, which therefore reads nothing before the copy that it is sent is the last one.
  static bool pass_on(RunningServer& running, Lingering& socket, const RawClient& client, const std::string& text) {
    bool passed = false;
    running.on_io([&] { passed = socket.pass_on(client, text); });
    EXPECT_TRUE(passed || GetParam()) << "an older kernel lets it through";
    return passed;
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, SentDescriptors, testing::Bool(), [](const auto& kernel) {
  return kernel.param ? "newest" : "older";
});

TEST_P(SentDescriptors, end_a_connection_before_its_upgrade_or_do_not_arrive) {
  RunningServer running{kernel()};
  Lingering socket;
  RawClient client = connect();
  if (pass_on(running, socket, client, "GET /page HTTP/1.1\r\n")) {
    EXPECT_TRUE(client.at_end());
  }
  EXPECT_EQ(connect().request("GET", "/page").status, 200) << "closing it takes an hour, and holds up nobody";
}

TEST_P(SentDescriptors, end_a_websocket_or_do_not_arrive) {
  RunningServer running{kernel()};
  Lingering socket;
  RawClient client = websocket();
  if (pass_on(running, socket, client, "\x81")) {
    EXPECT_EQ(client.read_frame().opcode, -1);
    EXPECT_TRUE(running.handlers.saw("close 1"));
  }
  EXPECT_EQ(connect().request("GET", "/page").status, 200) << "closing it takes an hour, and holds up nobody";
}

TEST_P(SentDescriptors, make_no_difference_to_messages_without_them) {
  RunningServer running{kernel()};
  RawClient client = websocket();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{300}, std::size_t{200'000}}) {
    const std::string text(bytes, 'x');
    client.send_frame(1, text);
    EXPECT_EQ(client.read_frame().payload, text);
  }
  client.shut_down_sending();
  EXPECT_TRUE(running.handlers.saw("close 1"));
}

TEST(PeerSocketReads, no_more_than_it_has_looked_at) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd ours(pair[0]);
  UniqueFd theirs(pair[1]);
  char bytes[16];
  boost::system::error_code error;
  EXPECT_FALSE(read_without_descriptors(ours.get(), asio::buffer(bytes), error).has_value());
  EXPECT_FALSE(error) << "nothing has come";
  ASSERT_EQ(::send(theirs.get(), "abc", 3, 0), 3);
  EXPECT_EQ(read_without_descriptors(ours.get(), asio::buffer(bytes, 2), error), 2u);
  EXPECT_EQ(read_without_descriptors(ours.get(), asio::buffer(bytes), error), 1u);
  theirs.reset();
  EXPECT_FALSE(read_without_descriptors(ours.get(), asio::buffer(bytes), error).has_value());
  EXPECT_EQ(error, asio::error::eof);
}

TEST(DescriptorsThatAreClosed, count_for_their_uid_until_they_are) {
  Closer closer;
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd theirs(pair[1]);
  closer.close_after_goodbye(UniqueFd(pair[0]), 7);
  EXPECT_EQ(closer.pending(7), 1u);
  char byte = 0;
  EXPECT_EQ(::recv(theirs.get(), &byte, 1, 0), 0) << "the end is seen at once";
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (closer.pending(7) > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_EQ(closer.pending(7), 0u);
}

}  // namespace
}  // namespace gradsync::net
