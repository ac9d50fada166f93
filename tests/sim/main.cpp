// Simulates one job over many daemons under faults of many seeds, and writes a report. Ends with 1 where something
// broke.
//
//   gradsync_sim [--seeds N] [--first SEED] [--daemons N] [--many-seeds N] [--many-daemons N] [--threads N]
//               [--say-all 1] [--out FILE]

#include "base/descriptors.hpp"
#include "sim/world.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
#include <xxhash.h>

#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <numeric>
#include <sched.h>
#include <string>
#include <thread>
#include <vector>

namespace gradsync::sim {

namespace {

constexpr std::size_t kRepeated = 20;  // seeds

struct Arguments {
  std::uint64_t seeds = 1'000;
  std::uint64_t first = 0;
  std::uint64_t daemons = 8;
  std::uint64_t many_seeds = 20;
  std::uint64_t many_daemons = 4'096;
  std::uint64_t threads = std::max(1u, std::thread::hardware_concurrency());
  std::uint64_t says_all = 0;
  std::string out = "report.json";
};

[[noreturn]] void usage() {
  std::fputs(
      "usage: gradsync_sim [--seeds N] [--first SEED] [--daemons N] [--many-seeds N] [--many-daemons N] [--threads N]\n"
      "                    [--say-all 1] [--out FILE]\n",
      stderr
  );
  std::exit(64);
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  const std::map<std::string, std::uint64_t*> numbers = {
      {"--seeds", &arguments.seeds},
      {"--first", &arguments.first},
      {"--daemons", &arguments.daemons},
      {"--many-seeds", &arguments.many_seeds},
      {"--many-daemons", &arguments.many_daemons},
      {"--threads", &arguments.threads},
      {"--say-all", &arguments.says_all}};
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) {
      usage();
    }
    if (name == "--out") {
      arguments.out = argv[i + 1];
    } else if (const auto found = numbers.find(name); found != numbers.end()) {
      *found->second = std::strtoull(argv[i + 1], nullptr, 10);
    } else {
      usage();
    }
  }
  return arguments;
}

/// Processor time of this thread.
Duration used() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// One kind of world, for many seeds.
class Series {
 public:
  Series(std::string name, Options options, std::uint64_t first, std::uint64_t seeds)
      : name_(std::move(name)), options_(std::move(options)), first_(first), outcomes_(seeds) {}

  /// Runs the next seed, on any thread; false: there is none.
  bool run_next() {
    const std::uint64_t next = taken_++;
    if (next >= outcomes_.size()) {
      return false;
    }
    const Duration before = used();
    outcomes_[next] = run(next);
    cpu_ns_[static_cast<std::size_t>(kind_of(first_ + next))] += std::chrono::nanoseconds(used() - before).count();
    if (!outcomes_[next].breach.empty()) {
      fmt::print("{}, seed {}: {}\n", name_, first_ + next, outcomes_[next].breach);
    } else if ((next + 1) % 100 == 0) {
      fmt::print("{}: {} of {} seeds\n", name_, next + 1, outcomes_.size());
    }
    std::fflush(stdout);
    return true;
  }

  /// The first seeds once more: what happens is a function of the seed alone.
  void repeat(std::size_t seeds) {
    for (std::size_t index = 0; index < std::min(seeds, outcomes_.size()); ++index) {
      Outcome& first = outcomes_[index];
      if (first.breach.empty() && run(index).trace_digest != first.trace_digest) {
        first.breach = "another run of the same seed went another way";
      }
    }
    repeated_ = std::min(seeds, outcomes_.size());
  }

  [[nodiscard]] std::size_t breaches() const {
    return static_cast<std::size_t>(std::ranges::count_if(outcomes_, [](const Outcome& each) {
      return !each.breach.empty();
    }));
  }

  [[nodiscard]] nlohmann::json report() const {
    std::map<std::string, std::uint64_t> faults;
    std::array<Travelled, kKinds> travelled;
    std::uint64_t nodes_done = 0;
    std::uint64_t done = 0;
    std::uint64_t failed = 0;
    std::uint64_t events = 0;
    std::uint64_t digest = 0;
    double virtual_s = 0;
    double coordinator_s = 0;
    nlohmann::json broken = nlohmann::json::array();
    for (const Outcome& each : outcomes_) {
      for (const auto& [name, count] : each.faults) {
        faults[name] += count;
      }
      travelled[static_cast<std::size_t>(kind_of(each.seed))].add(each);
      nodes_done += each.done * each.daemons;
      done += each.done;
      failed += each.failed;
      events += each.events;
      virtual_s += each.virtual_s;
      coordinator_s += each.coordinator_s;
      const std::uint64_t pair[] = {digest, each.trace_digest};
      digest = XXH3_64bits(pair, sizeof pair);
      if (!each.breach.empty()) {
        broken.push_back({{"seed", each.seed}, {"breach", each.breach}});
      }
    }
    const auto report_of = [&](Kind kind) {
      const auto number = static_cast<std::size_t>(kind);
      return travelled[number].report(static_cast<double>(cpu_ns_[number]) / 1e9);
    };
    return {
        {"seeds", outcomes_.size()},
        {"repeated", repeated_},
        {"daemons", options_.daemons},
        {"breaches", broken.size()},
        {"broken", broken},
        {"faults", faults},
        {"attempts_done", done},
        {"attempts_failed", failed},
        {"arena", report_of(Kind::Sockets)},
        {"nccl", report_of(Kind::Nccl)},
        {"sites", report_of(Kind::Sites)},
        {"events", events},
        {"virtual_s", virtual_s},
        {"trace_digest", fmt::format("{:016x}", digest)},
        {"cpu_s", static_cast<double>(std::accumulate(cpu_ns_.begin(), cpu_ns_.end(), std::int64_t{0})) / 1e9},
        {"coordinator_us_per_node_and_step",
         nodes_done == 0 ? 0.0 : 1e6 * coordinator_s / static_cast<double>(nodes_done)}};
  }

 private:
  /// What gradients travel by: nothing, sockets, communicators of one site on each node, or of several.
  enum class Kind : std::uint8_t { Stats, Sockets, Nccl, Sites };
  static constexpr std::size_t kKinds = 4;

  /// What worlds have come to in which gradients travel.
  struct Travelled {
    std::uint64_t seeds = 0;
    std::uint64_t done = 0;
    std::uint64_t failed = 0;
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
    std::uint64_t communicators = 0;
    std::uint64_t operations = 0;

    void add(const Outcome& each) {
      ++seeds;
      done += each.done;
      failed += each.failed;
      messages += each.data_messages;
      bytes += each.data_bytes;
      communicators += each.communicators;
      operations += each.operations;
    }

    [[nodiscard]] nlohmann::json report(double cpu_s) const {
      return {
          {"seeds", seeds},
          {"attempts_done", done},
          {"attempts_failed", failed},
          {"data_messages", messages},
          {"data_bytes", bytes},
          {"communicators", communicators},
          {"operations", operations},
          {"cpu_s", cpu_s}};
    }
  };

  [[nodiscard]] Kind kind_of(std::uint64_t seed) const {
    if (!options_.arena || seed % 2 == 0) {
      return Kind::Stats;
    }
    return seed % 4 == 1 ? Kind::Sockets : seed % 8 == 7 ? Kind::Nccl : Kind::Sites;
  }

  [[nodiscard]] Outcome run(std::uint64_t index) const {
    Options options = options_;
    options.seed = first_ + index;
    const Kind kind = kind_of(options.seed);
    options.arena = kind != Kind::Stats;
    options.nccl = kind == Kind::Nccl || kind == Kind::Sites;
    options.sites = kind == Kind::Sites;
    options.computing *= kind == Kind::Nccl ? 2 : 1;  // half as many steps, and half of the time
    if (options.sites) {                              // powers of two, for exact means
      options.daemons = std::max<std::size_t>(2, options.daemons / (options.seed % 16 == 3 ? 2 : 4));
      options.ranks_per_daemon = 4;
    }
    if (!options.state_folder.empty()) {
      options.state_folder += fmt::format("/{}", options.seed);
    }
    return World(std::move(options)).run();
  }

  std::string name_;
  Options options_;
  std::uint64_t first_;
  std::size_t repeated_ = 0;
  std::vector<Outcome> outcomes_;
  std::atomic<std::uint64_t> taken_{0};
  std::array<std::atomic<std::int64_t>, kKinds> cpu_ns_{};
};

/// Worlds of many daemons come first: they are the longest. A world of 4,096 has 16,390 descriptors, and many systems
/// allow a table no more than 20,000 of them, so each thread has a table of its own.
void run_all(Series& few, Series& many, std::uint64_t threads) {
  std::vector<std::jthread> running;
  for (std::uint64_t thread = 0; thread < threads; ++thread) {
    running.emplace_back([&] {
      if (::unshare(CLONE_FILES) != 0) {
        throw std::system_error(errno, std::generic_category(), "unshare(CLONE_FILES)");
      }
      while (many.run_next()) {
      }
      while (few.run_next()) {
      }
    });
  }
}

int simulate(const Arguments& arguments) {
  Options options;
  options.daemons = arguments.daemons;
  options.arena = true;  // with every second seed
  options.says_all = arguments.says_all != 0;
  options.state_folder = fmt::format("/dev/shm/gradsync-sim-{}", ::getpid());
  Series few("few daemons", options, arguments.first, arguments.seeds);
  options.daemons = arguments.many_daemons;
  options.arena = false;
  options.ranks_per_daemon = 1;
  options.texts = false;
  options.shares_plans = true;
  options.state_folder.clear();
  options.faults = 3;
  options.ending = std::chrono::seconds(6);
  Series many("many daemons", options, arguments.first, arguments.many_seeds);
  const auto begin = std::chrono::steady_clock::now();
  run_all(few, many, arguments.threads);
  few.repeat(options.says_all ? 0 : kRepeated);
  const std::size_t breaches = few.breaches() + many.breaches();
  nlohmann::json report = {{"few", few.report()}, {"many", many.report()}};
  report["wall_s"] = seconds(std::chrono::steady_clock::now() - begin);
  report["breaches"] = breaches;
  std::ofstream(arguments.out) << report.dump(2) << '\n';
  fmt::print("{}\n", report.dump(2));
  return breaches == 0 ? 0 : 1;
}

}  // namespace

}  // namespace gradsync::sim

int main(int argc, char** argv) {
  spdlog::set_level(spdlog::level::off);
  gradsync::raise_descriptor_limit();  // each rank and each daemon has some
  return gradsync::sim::simulate(gradsync::sim::parse(argc, argv));
}
