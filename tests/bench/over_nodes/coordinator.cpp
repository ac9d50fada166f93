// What the coordinator of a job computes in one step, without links: the texts of all asks and votes in, the texts of
// all decisions and verdicts out, through the codec and the machine as gradsyncd does it.
//
//   bench_coordinator STEPS LAYERS SITES NODES…
//
// Each node has so many sites, as one with so many GPUs has, and each site one rank. LAYERS tensors are cut over all
// ranks, each a layer of its own, and one more is replicated, so that every site has the hash of a class. For each
// number of nodes it prints a line of JSON with medians over STEPS steps, in microseconds: of a step, and of its parts.
// A roster of more than 256 nodes has no message, so nothing of an epoch's beginning goes through the codec.

#include "engine/peers/coordinator_machine.hpp"
#include "rpc/peer/peer_codec.hpp"
#include "unit/engine/peers/sums/copied_plan.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradsync::bench {

using namespace engine;

namespace {

constexpr std::uint64_t kEpoch = 7;
constexpr const char* kDigest = "0123456789abcdef";
constexpr const char* kHash = "0123456789abcdef0123456789abcdef";
constexpr int kWarmUp = 3;

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point began) {
  return std::chrono::duration<double, std::micro>(Clock::now() - began).count();
}

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "bench_coordinator: %s\n", why.c_str());
  std::exit(1);
}

/// All ranks declared the same, and it is here.
class OneDeclaration final : public DeclarationsByHash {
 public:
  [[nodiscard]] std::shared_ptr<const plan::RankDeclaration> find(const ContentHash&) const override { return one_; }

  [[nodiscard]] std::vector<PeerDeclaration> pages_of(const ContentHash&) const override { return {}; }

  [[nodiscard]] std::optional<Error> take(PeerDeclaration) override { return std::nullopt; }

 private:
  std::shared_ptr<const plan::RankDeclaration> one_ = std::make_shared<plan::RankDeclaration>();
};

/// LAYERS tensors that are cut over all ranks, and one that all have.
std::shared_ptr<const plan::Plan> plan_of(std::uint32_t ranks, std::uint32_t layers) {
  auto plan = std::make_shared<plan::Plan>();
  plan->world_size = ranks;
  plan->options.data_path = plan::DataPath::Stats;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> cut;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> copied;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    cut.emplace_back(rank, rank);
    copied.emplace_back(rank, 0);
  }
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    plan->tensors.push_back(tensor_held_by(layer, cut));
    plan->tensors.back().declaration.layer = "layers." + std::to_string(layer);
  }
  plan->tensors.push_back(tensor_held_by(layers, copied));
  return plan;
}

double cpu_microseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

/// Microseconds of one step, and of its parts.
struct Cost {
  double cpu = 0;
  double decode = 0;
  double machine = 0;
  double encode = 0;
};

/// The coordinator, in Begun.
class Star {
 public:
  Star(std::uint32_t nodes, std::uint32_t sites, std::uint32_t layers) : nodes_(nodes), sites_(sites), layers_(layers) {
    for (std::uint32_t node = 0; node < nodes; ++node) {
      join(node);
    }
    const auto plan = plan_of(nodes * sites, layers);
    std::vector<SiteNumber> site_of_rank(nodes * sites);
    std::iota(site_of_rank.begin(), site_of_rank.end(), 0);
    machine_.on_comparison(
        kEpoch, plan, std::make_shared<const Comparison>(comparison_of(*plan, std::move(site_of_rank)))
    );
    from_all(PeerReady{kEpoch, kDigest, kDigest, false});
    from_all(PeerConnected{kEpoch});
    if (machine_.state() != CoordinatorMachine::State::Begun) {
      fail("the epoch has not begun: it waits for " + machine_.waits_for());
    }
  }

  Cost step() {
    const std::uint64_t word = attempt_word({kEpoch, attempt_++});
    now_ += Milliseconds(1);
    cost_ = {};
    decisions_ = verdicts_ = stored_ = 0;
    exchange(ask(word));
    exchange(PeerVote{word, kDigest});
    if (decisions_ != nodes_ - 1 || verdicts_ != nodes_ - 1 || stored_ != 1) {
      fail("a step of " + std::to_string(nodes_) + " nodes was not done");
    }
    return cost_;
  }

  [[nodiscard]] std::size_t ask_bytes() const { return ask_bytes_; }

 private:
  void join(std::uint32_t node) {
    PeerJoin join;
    join.challenge = node;
    join.count = 1;
    join.job = {0, "job"};
    join.world_size = nodes_ * sites_;
    join.local_world_size = sites_;
    join.node = join.node_id = "n" + std::to_string(node);
    join.incarnation = kDigest;
    join.address = node == 0 ? "" : "10.0.0.1";
    join.epoch = kEpoch;
    join.words.known = true;
    join.declared.emplace();
    join.declared->by_content.push_back({kHash, {{node * sites_, sites_}}, std::nullopt});
    for (std::uint32_t site = 0; site < sites_; ++site) {
      join.ranks.push_back(node * sites_ + site);
      join.declared->devices.push_back(site);
    }
    if (node != 0) {
      (void)machine_.on_link(now_, node, "10.0.0.1");
    }
    (void)by(node, std::move(join));
  }

  [[nodiscard]] PeerAsk ask(std::uint64_t word) const {
    PeerAsk ask;
    ask.word = word;
    ask.terms.step = static_cast<std::int64_t>(attempt_);
    ask.policy_digest = kDigest;
    SiteSums sums;
    sums.cells = cells_of(0.123456789, 1'000'000);
    sums.cells.layers.assign(layers_, sums.cells.whole);
    sums.row_hashes = {0x123456789abcdef0};
    ask.sites.assign(sites_, sums);
    return ask;
  }

  CoordinatorActions by(std::uint32_t node, ToCoordinator message) {
    return node == 0 ? machine_.on_own(now_, std::move(message)) : machine_.on_message(now_, node, std::move(message));
  }

  void from_all(const ToCoordinator& message) {
    for (std::uint32_t node = 0; node < nodes_; ++node) {
      (void)by(node, message);
    }
  }

  /// The same from every node: its text is read anew for each.
  void exchange(const ToCoordinator& message) {
    const std::string text = *rpc::encode_peer(message);
    ask_bytes_ = std::max(ask_bytes_, text.size());
    ToCoordinator own = message;
    const double cpu = cpu_microseconds();
    Clock::time_point began = Clock::now();
    perform(machine_.on_own(now_, std::move(own)), began);
    for (std::uint32_t node = 1; node < nodes_; ++node) {
      began = Clock::now();
      Result<ToCoordinator> read = reader_.to_coordinator(text);
      cost_.decode += microseconds_since(began);
      if (!read) {
        fail(read.error().message);
      }
      began = Clock::now();
      perform(machine_.on_message(now_, node, std::move(*read)), began);
    }
    cost_.cpu += cpu_microseconds() - cpu;
  }

  void perform(CoordinatorActions actions, Clock::time_point began) {
    cost_.machine += microseconds_since(began);
    began = Clock::now();
    for (const CoordinatorAction& action : actions) {
      if (const auto* send = std::get_if<SendToMember>(&action)) {
        decisions_ += std::holds_alternative<PeerDecision>(send->message) ? 1 : 0;
        verdicts_ += std::holds_alternative<PeerDone>(send->message) ? 1 : 0;
        if (!rpc::encode_peer(send->message)) {
          fail("a message has no text");
        }
      } else if (std::holds_alternative<StoreDone>(action)) {
        ++stored_;
      }
    }
    actions.clear();
    cost_.encode += microseconds_since(began);
  }

  std::uint32_t nodes_;
  std::uint32_t sites_;
  std::uint32_t layers_;
  TimePoint now_{std::chrono::seconds(1000)};
  OneDeclaration declarations_;
  CoordinatorMachine machine_{{{0, "job"}, kDigest, "1", "n0", kEpoch, 4096}, declarations_};
  rpc::PeerReader reader_;
  std::uint64_t attempt_ = 0;
  Cost cost_;
  std::size_t decisions_ = 0;
  std::size_t verdicts_ = 0;
  std::size_t stored_ = 0;
  std::size_t ask_bytes_ = 0;
};

template <typename Part>
double median_of(const std::vector<Cost>& costs, Part part) {
  std::vector<double> values;
  for (const Cost& cost : costs) {
    values.push_back(part(cost));
  }
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

void measure(std::uint32_t nodes, std::uint32_t sites, std::uint32_t layers, int steps) {
  Star star(nodes, sites, layers);
  std::vector<Cost> costs;
  for (int step = -kWarmUp; step < steps; ++step) {
    const Cost cost = star.step();
    if (step >= 0) {
      costs.push_back(cost);
    }
  }
  std::printf(
      R"({"nodes": %u, "sites": %u, "layers": %u, "ask_bytes": %zu, )"
      R"("step": %.2f, "decode": %.2f, "machine": %.2f, "encode": %.2f})"
      "\n",
      nodes,
      sites,
      layers,
      star.ask_bytes(),
      median_of(costs, [](const Cost& cost) { return cost.cpu; }),
      median_of(costs, [](const Cost& cost) { return cost.decode; }),
      median_of(costs, [](const Cost& cost) { return cost.machine; }),
      median_of(costs, [](const Cost& cost) { return cost.encode; })
  );
}

}  // namespace

}  // namespace gradsync::bench

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: bench_coordinator STEPS LAYERS SITES NODES…\n");
    return 64;
  }
  const auto number = [&](int at) { return static_cast<std::uint32_t>(std::stoul(argv[at])); };
  for (int at = 4; at < argc; ++at) {
    gradsync::bench::measure(number(at), number(3), number(2), std::stoi(argv[1]));
  }
  return 0;
}
