#include "device/process/packet_socket.hpp"

#include "device/device_error.hpp"
#include "device/memory/arena.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace gradsync::device {

namespace {

constexpr std::size_t kMostFds = 253;  // that the kernel passes at once: two for each of 126 other nodes
constexpr std::size_t kSizeBytes = sizeof(std::uint64_t);
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

DeviceError system_error(const char* what, int error) {
  return DeviceError(fmt::format("{}: {}", what, std::generic_category().message(error)));
}

/// Space for the control message of `kMostFds` descriptors, aligned as the kernel wants it.
struct Control {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMostFds * sizeof(int))> bytes{};
};

UniqueFd sealed_copy(const std::vector<std::byte>& bytes) {
  UniqueFd fd = open_memfd("gradsync-lane-message");
  if (!fd.valid()) {
    throw system_error("memfd_create for a message of a lane", errno);
  }
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::write(fd.get(), bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno != EINTR) {
      throw system_error("writing a message of a lane", errno);
    }
    done += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    throw system_error("sealing a message of a lane", errno);
  }
  return fd;
}

std::vector<std::byte> read_sealed(const UniqueFd& fd, std::uint64_t size) {
  struct stat status {};

  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(fd.get(), &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) != size) {
    throw DeviceError(fmt::format("a message of {} bytes came without a sealed memfd of that size", size));
  }
  std::vector<std::byte> bytes(size);
  for (std::size_t done = 0; done < size;) {
    const ssize_t count = ::pread(fd.get(), bytes.data() + done, size - done, static_cast<off_t>(done));
    if (count == 0 || (count < 0 && errno != EINTR)) {
      throw system_error("reading a message of a lane", errno);
    }
    done += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  }
  return bytes;
}

std::vector<UniqueFd> take_fds(msghdr& header) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
      const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
        fds.emplace_back(fd);
      }
    }
  }
  return fds;
}

}  // namespace

Packet pack(LaneMessage message) {
  const std::uint64_t size = message.bytes.size();
  if (size > kMostMessageBytes) {
    throw DeviceError(fmt::format("a message of a lane has {} bytes, {} are possible", size, kMostMessageBytes));
  }
  Packet packet;
  packet.datagram.resize(kSizeBytes);
  std::memcpy(packet.datagram.data(), &size, kSizeBytes);
  if (size <= kInlineBytes) {
    packet.datagram.insert(packet.datagram.end(), message.bytes.begin(), message.bytes.end());
  } else {
    packet.fds.push_back(sealed_copy(message.bytes));
  }
  std::move(message.fds.begin(), message.fds.end(), std::back_inserter(packet.fds));
  if (packet.fds.size() > kMostFds) {
    throw DeviceError(
        fmt::format("a message of a lane has {} descriptors, {} are possible", packet.fds.size(), kMostFds)
    );
  }
  return packet;
}

LaneMessage unpack(Packet packet) {
  std::uint64_t size = 0;
  if (packet.datagram.size() >= kSizeBytes) {
    std::memcpy(&size, packet.datagram.data(), kSizeBytes);
  }
  const bool is_inline = size <= kInlineBytes;
  if (packet.datagram.size() != kSizeBytes + (is_inline ? size : 0) || size > kMostMessageBytes) {
    throw DeviceError(fmt::format("a datagram of {} bytes says that it has {}", packet.datagram.size(), size));
  }
  if (is_inline) {
    packet.datagram.erase(packet.datagram.begin(), packet.datagram.begin() + kSizeBytes);
    return {std::move(packet.datagram), std::move(packet.fds)};
  }
  if (packet.fds.empty()) {
    throw DeviceError(fmt::format("a message of {} bytes came without its memfd", size));
  }
  std::vector<std::byte> bytes = read_sealed(packet.fds.front(), size);
  packet.fds.erase(packet.fds.begin());
  return {std::move(bytes), std::move(packet.fds)};
}

PacketSocket::Sent PacketSocket::send(const Packet& packet) {
  iovec data{const_cast<std::byte*>(packet.datagram.data()), packet.datagram.size()};
  Control control;
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!packet.fds.empty()) {
    const std::size_t bytes = packet.fds.size() * sizeof(int);
    header.msg_control = control.bytes.data();
    header.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(bytes);
    for (std::size_t i = 0; i < packet.fds.size(); ++i) {
      const int fd = packet.fds[i].get();
      std::memcpy(CMSG_DATA(part) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  while (::sendmsg(fd_.get(), &header, MSG_NOSIGNAL) < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Sent::Full;
    }
    if (errno == EPIPE || errno == ECONNRESET) {
      return Sent::Broken;
    }
    if (errno != EINTR) {
      throw system_error("sending a message of a lane", errno);
    }
  }
  return Sent::Done;
}

std::optional<Packet> PacketSocket::receive() {
  Packet packet;
  packet.datagram.resize(kSizeBytes + kInlineBytes);
  iovec data{packet.datagram.data(), packet.datagram.size()};
  Control control;
  msghdr header{};
  ssize_t count = -1;
  do {
    header = {};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes.data();
    header.msg_controllen = control.bytes.size();
    count = ::recvmsg(fd_.get(), &header, MSG_CMSG_CLOEXEC);
    // ECONNRESET comes once, before what the other end had sent: it died with messages unread.
  } while (count < 0 && (errno == EINTR || errno == ECONNRESET));
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    return std::nullopt;
  }
  if (count < 0) {
    throw system_error("receiving a message of a lane", errno);
  }
  packet.fds = take_fds(header);
  if (count == 0) {
    ended_ = true;
    return std::nullopt;
  }
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    throw DeviceError("a datagram of a lane is too long or has too many descriptors");
  }
  packet.datagram.resize(static_cast<std::size_t>(count));
  return packet;
}

void PacketSocket::end_sending() const { ::shutdown(fd_.get(), SHUT_WR); }

void PacketSocket::shut_down() const { ::shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace gradsync::device
