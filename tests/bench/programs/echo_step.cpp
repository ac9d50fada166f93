// Built with -Ofast -march=native, as the floor is.
#include "bench/programs/echo_step.hpp"

#include "bench/programs/floor_step.hpp"
#include "bench/programs/floor_team.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

namespace gradsync::floors {

namespace {

float* gradients_in(const std::string& path, std::size_t elements) {
  const std::size_t bytes = (elements + 1) * sizeof(float);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 || lseek(fd, 0, SEEK_END) != static_cast<off_t>(bytes)) {
    std::fprintf(stderr, "bench_echo: %s has to be a file of %zu bytes\n", path.c_str(), bytes);
    std::exit(66);
  }
  return map_file<float>(fd, elements + 1);
}

}  // namespace

std::function<void()> step_over_files(std::size_t elements, const std::string& first, const std::string& second) {
  float* a = gradients_in(first, elements);
  float* b = gradients_in(second, elements);
  const auto team = std::make_shared<Team>(std::clamp(std::thread::hardware_concurrency(), 1U, 2U));
  return [=] { a[elements] = b[elements] = static_cast<float>(bare_step(a, b, elements, *team)); };
}

}  // namespace gradsync::floors
