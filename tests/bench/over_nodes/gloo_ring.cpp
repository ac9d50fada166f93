// A bare all-reduce of Gloo over TCP by its ring, between two processes: what wire_fp32_100m is compared with.
//
//   bench_gloo_ring NODE ADDRESS STORE_FOLDER ELEMENTS
//
// Standard input as in exchange_node.hpp.

#include "bench/over_nodes/gloo_ring.hpp"

#include "bench/over_nodes/exchange_node.hpp"

#include <exception>
#include <gloo/math.h>

namespace {

int run(char** arguments) {
  const auto node = static_cast<unsigned>(std::stoul(arguments[1]));
  gradsync::bench::GlooRing ring(node, arguments[2], arguments[3]);
  const auto exchange = [&](std::span<float> gradients) {
    ring.sum(gradients, static_cast<gradsync::bench::GlooRing::Sum>(&gloo::sum<float>));
  };
  gradsync::bench::SummingNode summing(node, std::stoul(arguments[4]), 1, exchange);
  return gradsync::bench::answer_lines(summing);
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
