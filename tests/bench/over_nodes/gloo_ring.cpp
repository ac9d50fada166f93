// A bare all-reduce of Gloo over TCP by its ring, between two processes: what wire_fp32_100m is compared with.
//
//   bench_gloo_ring NODE ADDRESS STORE_FOLDER ELEMENTS
//
// Standard input as in exchange_node.hpp.

#include "bench/over_nodes/exchange_node.hpp"

#include <exception>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <memory>

namespace {

using Sum = void (*)(void*, const void*, const void*, std::size_t);

int run(char** arguments) {
  const auto node = static_cast<unsigned>(std::stoul(arguments[1]));
  gloo::transport::tcp::attr place;
  place.hostname = arguments[2];
  auto device = gloo::transport::tcp::CreateDevice(place);
  gloo::rendezvous::FileStore store(arguments[3]);
  auto context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(node), 2);
  context->connectFullMesh(store, device);
  const auto exchange = [&](std::span<float> gradients) {
    gloo::AllreduceOptions options(context);
    options.setOutput(gradients.data(), gradients.size());
    options.setReduceFunction(static_cast<Sum>(&gloo::sum<float>));
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    gloo::allreduce(options);
  };
  return gradsync::bench::answer_lines(node, std::stoul(arguments[4]), 1, exchange);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fprintf(stderr, "usage: bench_gloo_ring NODE ADDRESS STORE_FOLDER ELEMENTS\n");
    return 64;
  }
  try {
    return run(arguments);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return EXIT_FAILURE;
  }
}
