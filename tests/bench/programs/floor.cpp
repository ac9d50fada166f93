// The floors of the benchmarks; of a step with two ranks here: the same passes over the same bytes as a step with
// clipping, in the barest loop this compiler makes for this machine (built with -Ofast -march=native, unlike anything
// else here). No protocol, no readiness, no fixed summation order, no NaN rule, no watch: a bound to compare with,
// never a competitor.
// The loops are in floor_step.hpp, those of the benchmarks that scatter in floor_scatter.hpp. Commands arrive on stdin,
// one per line: `fill`, `step`, `quit`.
#include "bench/programs/floor_scatter.hpp"
#include "bench/programs/floor_step.hpp"
#include "bench/programs/floor_team.hpp"

#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

namespace gradsync::floors {
namespace {

template <typename T>
class StepFloor {
 public:
  StepFloor(std::size_t count, unsigned threads)
      : count_(count), a_(map_elements<T>(count)), b_(map_elements<T>(count)), team_(threads) {}

  void fill() {
    std::uint32_t state = 1;
    for (std::size_t i = 0; i < count_; ++i) {
      state = state * 1664525 + 1013904223;
      const float value = static_cast<float>(state >> 8) * 0x1p-24F - 0.5F;
      narrow(value, a_[i]);
      narrow(value * 0.75F, b_[i]);
    }
  }

  double step() {
    const auto begin = std::chrono::steady_clock::now();
    bare_step(a_, b_, count_, team_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  std::size_t count_;
  T* a_;
  T* b_;
  Team team_;
};

template <typename Floor, typename... Arguments>
int serve(Arguments... arguments) {
  Floor floor{arguments...};
  std::cout << "ready" << std::endl;
  for (std::string command; std::getline(std::cin, command) && command != "quit";) {
    if (command == "fill") {
      floor.fill();
      std::cout << "filled" << std::endl;
    } else {
      std::cout << floor.step() << std::endl;
    }
  }
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  const std::string what = arguments.size() == 4 ? arguments[0] + " " + arguments[1] : "";
  const std::size_t count = what.empty() ? 0 : std::stoull(arguments[2]);
  const unsigned threads = what.empty() ? 0 : static_cast<unsigned>(std::stoul(arguments[3]));
  if (what == "step float32") {
    return serve<StepFloor<float>>(count, threads);
  }
  if (what == "step bfloat16") {
    return serve<StepFloor<Bfloat16>>(count, threads);
  }
  if (what == "scatter 1x4") {
    return serve<ScatterFloor<1>>(count, threads, 0.0);
  }
  if (what == "scatter 2x2") {
    return serve<ScatterFloor<2>>(count, threads, kMaxNorm);
  }
  std::cerr << "usage: bench_floor step float32|bfloat16 ELEMENTS THREADS\n"
               "       bench_floor scatter 1x4|2x2 ELEMENTS THREADS\n";
  return 64;
}

}  // namespace
}  // namespace gradsync::floors

int main(int argc, char** argv) {
  std::cout.precision(9);
  return gradsync::floors::run({argv + 1, argv + argc});
}
