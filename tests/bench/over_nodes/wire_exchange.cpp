// The transfer program of a job of two nodes with one rank each, over the socket wire and with real additions, and
// nothing else of a daemon: what wire_fp32_100m compares with a bare Gloo ring.
//
//   bench_wire NODE ADDRESS PORT_FILE ELEMENTS BUCKET_BYTES BLOCK_BYTES STAGING_BYTES
//
// Node 0 listens there and writes the port into the file, and node 1 connects. Standard input as in exchange_node.hpp.

#include "bench/over_nodes/exchange_node.hpp"
#include "device/wire/wire.hpp"
#include "plan/transfer/node_transfer.hpp"

#include <sys/socket.h>

#include <arpa/inet.h>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <netinet/in.h>
#include <stdexcept>
#include <utility>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

constexpr float kDivisor = 2;

/// A bucket of one tensor each, but the last as large as the others; the mean over both ranks.
plan::Plan plan_of(std::size_t elements, std::size_t bucket_elements) {
  plan::Plan made;
  made.world_size = 2;
  made.sums = {{{{{0, 0}, {1, 0}}, {{0, 0}, {1, 0}}}}};
  for (std::size_t first = 0; first < elements; first += bucket_elements) {
    const std::uint64_t count = std::min(bucket_elements, elements - first);
    plan::PlannedTensor tensor;
    tensor.bucket = static_cast<std::uint32_t>(made.buckets.size());
    tensor.parts = {{0, 0, count, 0, count, {}}};
    plan::Bucket bucket;
    bucket.tensors = {tensor.bucket};
    bucket.divisor = kDivisor;
    made.tensors.push_back(std::move(tensor));
    made.buckets.push_back(std::move(bucket));
  }
  return made;
}

UniqueFd stream_socket() {
  UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!fd.valid()) {
    throw std::runtime_error("no socket");
  }
  return fd;
}

void require(bool is_so, const char* what) {
  if (!is_so) {
    throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));  // NOLINT(concurrency-mt-unsafe)
  }
}

/// Two connections: for partial sums, then for results.
std::array<UniqueFd, 2> connect_nodes(unsigned node, const char* host, const char* port_file) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  require(::inet_pton(AF_INET, host, &address.sin_addr) == 1, host);
  auto* place = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  std::array<UniqueFd, 2> connected;
  if (node == 0) {
    const UniqueFd listener = stream_socket();
    require(::bind(listener.get(), place, size) == 0 && ::listen(listener.get(), 2) == 0, "listen");
    require(::getsockname(listener.get(), place, &size) == 0, "getsockname");
    std::ofstream(port_file) << ntohs(address.sin_port) << '\n';
    for (UniqueFd& fd : connected) {
      fd.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      require(fd.valid(), "accept");
    }
    return connected;
  }
  std::uint16_t port = 0;
  std::ifstream(port_file) >> port;
  address.sin_port = htons(port);
  for (UniqueFd& fd : connected) {
    fd = stream_socket();
    require(::connect(fd.get(), place, size) == 0, "connect");
  }
  return connected;
}

class Exchange {
 public:
  Exchange(
      unsigned node,
      std::size_t elements,
      std::size_t bucket_elements,
      const plan::TransferOptions& options,
      std::size_t staging_bytes,
      std::vector<device::NodeConnection> nodes
  )
      : node_(node), wire_(device::make_socket_wire(std::move(nodes), [this] { wake(); })) {
    const plan::Plan plan = plan_of(elements, bucket_elements);
    const std::vector<plan::TransferNode> node_of_rank{0, 1};
    for (std::uint32_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
      add(plan::make_bucket_transfer(plan, bucket, node_of_rank, options), bucket * bucket_elements);
    }
    staging_.resize(staging_bytes);
    for (std::size_t at = 0; at + 2 * slot_bytes_ <= staging_.size(); at += 2 * slot_bytes_) {
      free_.push_back(staging_.data() + at);
    }
  }

  void operator()(std::span<float> gradients) {
    ++tag_;
    std::size_t next = 0;
    std::size_t done = 0;
    while (done < blocks_.size()) {
      for (; next < blocks_.size() && !free_.empty(); ++next) {
        begin(blocks_[next], gradients);
      }
      wait();
      events_.clear();
      wire_->take_done(events_);
      if (const auto fault = wire_->fault()) {
        throw std::runtime_error(fault->message);
      }
      for (const device::WireDone& event : events_) {
        done += handle(event, gradients) ? 1 : 0;
      }
    }
  }

 private:
  struct Planned {
    std::uint32_t bucket = 0;
    plan::TransferBlock block;
    std::uint64_t first = 0;
    std::uint32_t number = 0;  ///< of its partial sum, and of its result
  };

  static std::size_t bytes_of(const plan::TransferBlock& block) { return block.elements * sizeof(float) + 1; }

  void add(const plan::BucketTransfer& transfer, std::uint64_t bucket_first) {
    std::array<std::uint32_t, 2> numbers{};
    for (const plan::TransferBlock& block : transfer.blocks) {
      const std::uint64_t first = bucket_first + transfer.pieces_of(block)[0].first;
      blocks_.push_back({transfer.bucket, block, first, numbers[block.owner]++});
      slot_bytes_ = std::max<std::size_t>(slot_bytes_, plan::align_up(bytes_of(block)));
    }
  }

  [[nodiscard]] device::WireMessage message(const Planned& of, plan::Payload payload) const {
    return {1 - node_, payload, tag_, of.bucket, of.number};
  }

  void begin(const Planned& planned, std::span<const float> gradients) {
    std::byte* memory = free_.back();
    free_.pop_back();
    const std::span partial(memory, bytes_of(planned.block));
    const std::span result(memory + slot_bytes_, bytes_of(planned.block));
    auto& open = planned.block.owner == node_ ? owned_ : sent_;
    open.push_back({&planned, partial, result});
    if (planned.block.owner == node_) {
      wire_->receive(message(planned, plan::Payload::Partial), partial);
      return;
    }
    std::memcpy(partial.data(), gradients.data() + planned.first, planned.block.elements * sizeof(float));
    partial.back() = std::byte{1};
    wire_->send(message(planned, plan::Payload::Partial), partial);
    wire_->receive(message(planned, plan::Payload::Result), result);
  }

  /// Both payloads come and go in the order of the blocks. True: a block is done.
  bool handle(const device::WireDone& event, std::span<float> gradients) {
    const bool partial = event.message.payload == plan::Payload::Partial;
    if (partial && !event.received) {
      return false;  // its result is behind it
    }
    if (partial) {
      add_up(owned_[added_++], gradients);
      return false;
    }
    auto& open = event.received ? sent_ : owned_;
    const Open block = open.front();
    open.pop_front();
    if (event.received) {
      const auto [planned, unused, result] = block;
      std::memcpy(gradients.data() + planned->first, result.data(), planned->block.elements * sizeof(float));
    } else {
      --added_;
    }
    free_.push_back(block.partial.data());
    return true;
  }

  struct Open {
    const Planned* planned = nullptr;
    std::span<std::byte> partial;
    std::span<std::byte> result;
  };

  void add_up(const Open& open, std::span<float> gradients) {
    float* own = gradients.data() + open.planned->first;
    const auto* other = reinterpret_cast<const float*>(open.partial.data());
    auto* result = reinterpret_cast<float*>(open.result.data());
    const std::size_t count = open.planned->block.elements;
    for (std::size_t i = 0; i < count; ++i) {
      const float sum = node_ == 0 ? own[i] + other[i] : other[i] + own[i];
      result[i] = sum / kDivisor;
      own[i] = result[i];
    }
    open.result.back() = open.partial.back();
    wire_->send(message(*open.planned, plan::Payload::Result), open.result);
  }

  void wake() {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    condition_.notify_one();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return woken_; });
    woken_ = false;
  }

  unsigned node_;
  device::Tag tag_ = 0;
  std::vector<Planned> blocks_;
  std::size_t slot_bytes_ = 0;
  std::vector<std::byte> staging_;
  std::vector<std::byte*> free_;
  std::deque<Open> owned_;
  std::deque<Open> sent_;
  std::size_t added_ = 0;  ///< of the owned ones: their results are being sent
  std::vector<device::WireDone> events_;
  std::mutex mutex_;
  std::condition_variable condition_;
  bool woken_ = false;
  std::unique_ptr<device::Wire> wire_;
};

int run(char** arguments) {
  const auto node = static_cast<unsigned>(std::stoul(arguments[1]));
  const std::size_t elements = std::stoul(arguments[4]);
  const std::size_t bucket_elements = std::stoul(arguments[5]) / sizeof(float);
  plan::TransferOptions options;
  options.block_bytes = std::stoul(arguments[6]);
  const std::size_t staging = std::stoul(arguments[7]);
  auto [partials, results] = connect_nodes(node, arguments[2], arguments[3]);
  std::vector<device::NodeConnection> nodes;
  nodes.push_back({1 - node, std::move(partials), std::move(results)});
  Exchange exchange(node, elements, bucket_elements, options, staging, std::move(nodes));
  bench::SummingNode summing(node, elements, kDivisor, [&](std::span<float> gradients) { exchange(gradients); });
  return bench::answer_lines(summing);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 8) {
    std::fprintf(stderr, "usage: bench_wire NODE ADDRESS PORT_FILE ELEMENTS BUCKET_BYTES BLOCK_BYTES STAGING_BYTES\n");
    return 64;
  }
  try {
    return run(arguments);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return EXIT_FAILURE;
  }
}
