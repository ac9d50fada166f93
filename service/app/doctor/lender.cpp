#include "app/doctor/lender.hpp"

#include "device/device_error.hpp"

#include <boost/algorithm/hex.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

namespace gradsync::app {

namespace {

constexpr Milliseconds kEndOfLender{1000};

std::string digits_of(const std::string& bytes) {
  std::string text;
  boost::algorithm::hex_lower(bytes, std::back_inserter(text));
  return text;
}

std::string bytes_in(const nlohmann::json& text) {
  std::string bytes;
  boost::algorithm::unhex(text.get<std::string>(), std::back_inserter(bytes));
  return bytes;
}

device::Packet packet_of(const std::string& text) {
  device::LaneMessage message;
  message.bytes.resize(text.size());
  std::memcpy(message.bytes.data(), text.data(), text.size());
  return device::pack(std::move(message));
}

std::string text_of(device::Packet packet) {
  const device::LaneMessage message = device::unpack(std::move(packet));
  return {reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size()};
}

nlohmann::json answer_to(const nlohmann::json& question, device::LentMemory& memory) {
  const std::string what = question.at("ask");
  if (what == "describe") {
    const device::GpuDescription found = memory.describe();
    return {
        {"name", found.name},
        {"compute_mode", found.compute_mode},
        {"capability", found.capability},
        {"memory_bytes", found.memory_bytes}};
  }
  if (what == "lend") {
    return {{"handle", digits_of(memory.lend(bytes_in(question.at("content"))))}};
  }
  return {{"content", digits_of(memory.read(question.at("bytes")))}};
}

}  // namespace

struct Lender::Ends {
  UniqueFd ours;
  UniqueFd theirs;

  static Ends make() {
    std::array<int, 2> fds{-1, -1};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()) != 0) {
      throw device::DeviceError("no socket can be had for a process that lends memory");
    }
    return {UniqueFd(fds[0]), UniqueFd(fds[1])};
  }
};

Lender::Lender(const std::string& kernels, const std::string& gpu, Milliseconds timeout)
    : Lender(kernels, gpu, timeout, Ends::make()) {}

Lender::Lender(const std::string& kernels, const std::string& gpu, Milliseconds timeout, Ends ends)
    : timeout_(timeout),
      socket_(std::move(ends.ours)),
      process_(
          {"/proc/self/exe", "worker", "--lend", "--kernels", kernels, "--gpu", gpu},
          {"CUDA_VISIBLE_DEVICES=" + gpu},
          ends.theirs
      ) {}

Result<std::string> Lender::ask(const std::string& question) {
  try {
    (void)socket_.send(packet_of(question));
    pollfd watched{socket_.fd(), POLLIN, 0};
    if (::poll(&watched, 1, static_cast<int>(timeout_.count())) <= 0) {
      return make_error(
          ErrorCode::ImportRefused,
          fmt::format("it did not answer within {} ms", timeout_.count()),
          "look at nvidia-smi"
      );
    }
    std::optional<device::Packet> packet = socket_.receive();
    if (!packet) {
      const std::optional<std::string> end = process_.wait_end(kEndOfLender);
      return make_error(ErrorCode::ImportRefused, "the process " + end.value_or("closed its socket"));
    }
    std::string text = text_of(std::move(*packet));
    const nlohmann::json answer = nlohmann::json::parse(text);
    if (answer.contains("error")) {
      return make_error(ErrorCode::ImportRefused, answer.at("error"), answer.at("hint"));
    }
    return text;
  } catch (const std::exception& error) {
    return make_error(ErrorCode::ImportRefused, error.what());
  }
}

Result<device::GpuDescription> Lender::describe() {
  const Result<std::string> text = ask(nlohmann::json({{"ask", "describe"}}).dump());
  if (!text) {
    return text.error();
  }
  const nlohmann::json answer = nlohmann::json::parse(*text);
  return device::GpuDescription{
      answer.at("name"), answer.at("compute_mode"), answer.at("capability"), answer.at("memory_bytes")};
}

Result<std::string> Lender::lend(const std::string& content) {
  const Result<std::string> text = ask(nlohmann::json({{"ask", "lend"}, {"content", digits_of(content)}}).dump());
  return text ? Result<std::string>(bytes_in(nlohmann::json::parse(*text).at("handle"))) : text.error();
}

Result<std::string> Lender::read(std::size_t bytes) {
  const Result<std::string> text = ask(nlohmann::json({{"ask", "read"}, {"bytes", bytes}}).dump());
  return text ? Result<std::string>(bytes_in(nlohmann::json::parse(*text).at("content"))) : text.error();
}

void lend_memory(UniqueFd fd, const std::string& kernels, const std::string& gpu) {
  // It ends with who started it, also where a GPU that hangs keeps it from reading its socket.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  device::PacketSocket socket(std::move(fd));
  device::LentMemory memory(kernels, gpu);
  while (std::optional<device::Packet> packet = socket.receive()) {
    nlohmann::json answer;
    try {
      answer = answer_to(nlohmann::json::parse(text_of(std::move(*packet))), memory);
    } catch (const device::DeviceError& error) {
      answer = {{"error", error.what()}, {"hint", error.hint()}};
    }
    (void)socket.send(packet_of(answer.dump()));
  }
}

}  // namespace gradsync::app
