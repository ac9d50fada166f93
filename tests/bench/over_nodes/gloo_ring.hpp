#pragma once
// An all-reduce of Gloo between two processes over TCP, by its ring.

#include <cstddef>
#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
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

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace gradsync::bench
