#include "net/socket/listening_socket.hpp"
#include "unit/net/server_fixture.hpp"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

namespace gradsync::net {
namespace {

class FdSocket : public ServerTest {
 protected:
  [[nodiscard]] RawClient connect_fd() const { return RawClient::unix_socket(folder / "gradsync.fd.sock"); }

  static void send_with(const RawClient& client, std::string text, const std::vector<int>& fds) {
    iovec data{text.data(), text.size()};
    std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
    ASSERT_EQ(::sendmsg(client.fd(), &message, 0), static_cast<ssize_t>(text.size()));
  }

  static std::size_t open_descriptors() {
    const auto entries = std::filesystem::directory_iterator("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
  }

  /// Reads the answer with whatever descriptor came along.
  static std::pair<std::string, UniqueFd> receive(const RawClient& client) {
    std::string line(4096, '\0');
    iovec data{line.data(), line.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(client.fd(), &message, MSG_CMSG_CLOEXEC);
    line.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    UniqueFd fd;
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
      int value = -1;
      std::memcpy(&value, CMSG_DATA(header), sizeof value);
      fd.reset(value);
    }
    return {line, std::move(fd)};
  }
};

TEST_F(FdSocket, lies_beside_the_first) {
  EXPECT_EQ(fd_socket_path("/run/gradsync/gradsync.sock"), "/run/gradsync/gradsync.fd.sock");
  EXPECT_EQ(fd_socket_path("/tmp/x"), "/tmp/x.fd.sock");
}

TEST_F(FdSocket, a_good_token_gets_the_sealed_descriptor_and_its_size) {
  const RunningServer running{options()};
  RawClient client = connect_fd();
  client.send("go");
  client.send("od\n");
  auto [line, fd] = receive(client);
  EXPECT_EQ(line, "{\"bytes\":4096}\n");
  ASSERT_TRUE(fd.valid());

  struct stat found {};

  ASSERT_EQ(::fstat(fd.get(), &found), 0);
  EXPECT_EQ(found.st_size, 4096);
  EXPECT_EQ(::fcntl(fd.get(), F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_TRUE(client.at_end());
}

TEST_F(FdSocket, a_bad_token_gets_the_error_and_no_descriptor) {
  RunningServer running{options()};
  RawClient client = connect_fd();
  client.send("bad\n");
  auto [line, fd] = receive(client);
  EXPECT_EQ(
      line,
      R"({"error":{"message":"no such token","data":{"kind":"bad_token"}}})"
      "\n"
  );
  EXPECT_FALSE(fd.valid());
  EXPECT_TRUE(client.at_end());
  EXPECT_TRUE(running.handlers.saw(fmt::format("token bad uid={}", ::geteuid())));
}

TEST_F(FdSocket, a_descriptor_may_come_with_the_token) {
  const RunningServer running{options()};
  const UniqueFd memory(::memfd_create("mine", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), 12288), 0);
  for (const std::string first : {"mine\n", "m"}) {  // with the whole line, or with its first byte
    RawClient client = connect_fd();
    send_with(client, first, {memory.get()});
    client.send(first == "m" ? "ine\n" : "");
    EXPECT_EQ(client.read_line(), "{\"bytes\":12288}");
    EXPECT_TRUE(client.at_end());
  }
  RawClient without = connect_fd();
  without.send("mine\n");
  EXPECT_NE(without.read_line().find("no descriptor came"), std::string::npos);
}

TEST_F(FdSocket, descriptors_beyond_the_first_are_closed) {
  const RunningServer running{options()};
  const UniqueFd memory(::memfd_create("mine", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), 4096), 0);
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    RawClient client = connect_fd();
    send_with(client, "mi", std::vector<int>(7, memory.get()));
    send_with(client, "ne\n", {memory.get()});
    EXPECT_EQ(client.read_line(), "{\"bytes\":4096}");
    EXPECT_TRUE(client.at_end());
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (open_descriptors() != before && std::chrono::steady_clock::now() < end) {  // another thread closes them
    std::this_thread::yield();
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(FdSocket, a_line_that_is_too_long_is_an_error) {
  const RunningServer running{options()};
  RawClient client = connect_fd();
  client.send(std::string(100, 'a'));
  EXPECT_NE(client.read_line().find("64 bytes"), std::string::npos);
  EXPECT_TRUE(client.at_end());
}

TEST_F(FdSocket, a_client_that_says_nothing_is_closed_at_the_deadline) {
  ServerOptions hasty = options();
  hasty.handshake_timeout = Milliseconds{50};
  const RunningServer running{hasty};
  RawClient client = connect_fd();
  EXPECT_TRUE(client.at_end());
}

TEST_F(FdSocket, over_the_limit_the_answer_is_a_line_as_well) {
  ServerOptions few = options();
  few.connections = 1;
  const RunningServer running{few};
  const RawClient first = websocket();
  RawClient second = connect_fd();
  EXPECT_NE(second.read_line().find("\"limit_exceeded\""), std::string::npos);
  EXPECT_TRUE(second.at_end());
}

TEST_F(FdSocket, a_client_that_leaves_before_the_answer_harms_nobody) {
  const RunningServer running{options()};
  for (int i = 0; i < 20; ++i) {
    RawClient client = connect_fd();
    client.send("good\n");
  }
  RawClient client = connect_fd();
  client.send("good\n");
  EXPECT_TRUE(receive(client).second.valid());
}

}  // namespace
}  // namespace gradsync::net
