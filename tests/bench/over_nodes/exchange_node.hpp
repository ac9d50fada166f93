#pragma once
// One of two nodes that sum their gradients, as a process that is asked line by line: `fill`, `step NS` (at that moment
// of the common clock), `quit`. It answers a step with the seconds of wall clock and of CPU that it took, and ends
// where a sampled element is not what it should be.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
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

inline constexpr std::size_t kSampledStep = 997;  ///< from one element that is compared to the next

/// `Node` has `fill`, `step`, and `wrong`: what is wrong with its gradients behind a step, if anything.
template <typename Node>
int answer_lines(Node& node) {
  std::cout << "ready" << std::endl;  // NOLINT(performance-avoid-endl): the other end waits for it
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    if (line == "fill") {
      node.fill();
      std::cout << "filled" << std::endl;  // NOLINT(performance-avoid-endl)
      continue;
    }
    const std::chrono::nanoseconds moment{std::stoll(line.substr(line.find(' ') + 1))};
    std::this_thread::sleep_until(std::chrono::steady_clock::time_point(moment));
    const double cpu = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    node.step();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const double used = cpu_seconds() - cpu;
    if (const std::optional<std::string> wrong = node.wrong()) {
      std::fprintf(stderr, "%s\n", wrong->c_str());
      return EXIT_FAILURE;
    }
    std::printf("{\"seconds\": %.9f, \"cpu_seconds\": %.9f}\n", took.count(), used);
    std::fflush(stdout);
  }
  return EXIT_SUCCESS;
}

/// `exchange` takes the gradients and leaves the sum over both nodes there, divided by `divisor`.
template <typename Exchange>
class SummingNode {
 public:
  SummingNode(unsigned node, std::size_t elements, float divisor, Exchange exchange)
      : node_(node), divisor_(divisor), exchange_(std::move(exchange)), gradients_(elements) {}

  void fill() {
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      gradients_[i] = gradient_of(node_, i);
    }
  }

  void step() { exchange_(std::span(gradients_)); }

  [[nodiscard]] std::optional<std::string> wrong() const {
    for (std::size_t i = 0; i < gradients_.size(); i += kSampledStep) {
      const float expected = (gradient_of(0, i) + gradient_of(1, i)) / divisor_;
      if (gradients_[i] != expected) {
        return "element " + std::to_string(i) + " is " + std::to_string(gradients_[i]) + ", not " +
               std::to_string(expected);
      }
    }
    return std::nullopt;
  }

 private:
  unsigned node_;
  float divisor_;
  Exchange exchange_;
  std::vector<float> gradients_;
};

}  // namespace gradsync::bench
