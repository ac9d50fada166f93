#include "net/socket/peer_socket.hpp"
#include "unit/net/server_fixture.hpp"

#include <sys/socket.h>

#include <cstring>

namespace gradsync::net {
namespace {

/// Descriptors that a peer sends to the main socket: of a kernel that keeps them away, and of an older one.
class SentDescriptors : public ServerTest, public testing::WithParamInterface<bool> {
 protected:
  [[nodiscard]] ServerOptions kernel() const {
    ServerOptions chosen = options();
    chosen.kernel_refuses_descriptors = GetParam();
    return chosen;
  }

  /// False: the system does not let it through.
  static bool send_with(const RawClient& client, std::string text, int fd) {
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
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return ::sendmsg(client.fd(), &message, MSG_NOSIGNAL) >= 0;
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, SentDescriptors, testing::Bool(), [](const auto& kernel) {
  return kernel.param ? "newest" : "older";
});

TEST_P(SentDescriptors, end_a_connection_before_its_upgrade_or_do_not_arrive) {
  RunningServer running{kernel()};
  RawClient client = connect();
  if (send_with(client, "GET /page HTTP/1.1\r\n", 0)) {
    EXPECT_TRUE(client.at_end());
  }
  EXPECT_EQ(connect().request("GET", "/page").status, 200);
}

TEST_P(SentDescriptors, end_a_websocket_or_do_not_arrive) {
  RunningServer running{kernel()};
  RawClient client = websocket();
  if (send_with(client, "\x81", 0)) {
    EXPECT_EQ(client.read_frame().opcode, -1);
    EXPECT_TRUE(running.handlers.saw("close 1"));
  }
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
