#pragma once
// What Gloo does between two processes over TCP: an all-reduce by its ring, and bytes that go both ways.

#include <cstddef>
#include <cstdint>
#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <memory>
#include <span>
#include <string>

namespace gradsync::bench {

class GlooRing {
 public:
  using Sum = void (*)(void*, const void*, const void*, std::size_t);

  /// `store`: a folder that both nodes see.
  GlooRing(unsigned node, const char* address, const std::string& store) {
    gloo::transport::tcp::attr place;
    place.hostname = address;
    auto device = gloo::transport::tcp::CreateDevice(place);
    gloo::rendezvous::FileStore meeting(store);
    context_ = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(node), 2);
    context_->connectFullMesh(meeting, device);
  }

  /// In place. `add` gets counts of elements.
  template <typename T>
  void sum(std::span<T> values, Sum add) {
    gloo::AllreduceOptions options(context_);
    options.setOutput(values.data(), values.size());
    options.setReduceFunction(add);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    gloo::allreduce(options);
  }

  /// Sends one while it receives the other; the peer's spans have the same sizes, crosswise.
  template <typename T>
  void swap(std::span<T> sent, std::span<T> received) {
    const int peer = 1 - context_->rank;
    auto out = context_->createUnboundBuffer(sent.data(), sent.size_bytes());
    auto in = context_->createUnboundBuffer(received.data(), received.size_bytes());
    out->send(peer, kSlot);
    in->recv(peer, kSlot);
    out->waitSend();
    in->waitRecv();
  }

 private:
  static constexpr std::uint64_t kSlot = 1;

  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace gradsync::bench
