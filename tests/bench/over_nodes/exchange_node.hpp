#pragma once
// One of two nodes that sum their gradients, as a process that is asked line by line: `fill`, `step NS` (at that moment
// of the common clock), `quit`. It answers a step with the seconds of wall clock and of CPU that it took, and ends
// where a sampled element is not the sum divided.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace gradsync::bench {

/// Whole numbers, whose sums are exact.
inline float gradient_of(unsigned node, std::size_t element) {
  return static_cast<float>(element % 1013 + 1) * static_cast<float>(node + 1);
}

inline double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// `exchange` takes the gradients and leaves the sum over both nodes there, divided by `divisor`.
template <typename Exchange>
int answer_lines(unsigned node, std::size_t elements, float divisor, Exchange exchange) {
  constexpr std::size_t kStep = 997;
  std::vector<float> gradients(elements);
  std::cout << "ready" << std::endl;  // NOLINT(performance-avoid-endl): the other end waits for it
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    if (line == "fill") {
      for (std::size_t i = 0; i < elements; ++i) {
        gradients[i] = gradient_of(node, i);
      }
      std::cout << "filled" << std::endl;  // NOLINT(performance-avoid-endl)
      continue;
    }
    const std::chrono::nanoseconds moment{std::stoll(line.substr(line.find(' ') + 1))};
    std::this_thread::sleep_until(std::chrono::steady_clock::time_point(moment));
    const double cpu = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    exchange(std::span(gradients));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const double used = cpu_seconds() - cpu;
    for (std::size_t i = 0; i < elements; i += kStep) {
      const float expected = (gradient_of(0, i) + gradient_of(1, i)) / divisor;
      if (gradients[i] != expected) {
        std::fprintf(stderr, "element %zu is %g, not %g\n", i, gradients[i], expected);
        return EXIT_FAILURE;
      }
    }
    std::printf("{\"seconds\": %.9f, \"cpu_seconds\": %.9f}\n", took.count(), used);
    std::fflush(stdout);
  }
  return EXIT_SUCCESS;
}

}  // namespace gradsync::bench
