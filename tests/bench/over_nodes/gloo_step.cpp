// The floor of a step of two nodes with two ranks each, as bare as it can be: for each bucket the sum of the node's
// ranks, a ring of Gloo between the nodes, and the mean with its sum of squares; then the clip, which writes both
// ranks. No protocol, no fixed order, no agreement, no check, no staging. Gradients that are bfloat16 travel as such,
// and are rounded at every hop; as `bfloat16_once` sums travel as float32 to the node that rounds them, and only the
// results as bfloat16, which is what gradsync promises.
//
//   bench_gloo_step NODE ADDRESS STORE_FOLDER float32|bfloat16|bfloat16_once ELEMENTS BUCKET_BYTES THREADS
//
// Standard input as in exchange_node.hpp. Built as the other floors are.

#include "bench/over_nodes/exchange_node.hpp"
#include "bench/over_nodes/gloo_ring.hpp"
#include "bench/programs/floor_step.hpp"
#include "bench/programs/floor_team.hpp"

#include <cmath>
#include <cstdint>
#include <exception>
#include <vector>

namespace gradsync::floors {
namespace {

constexpr unsigned kNodes = 2;
constexpr unsigned kRanks = 4;  // of both nodes
constexpr float kMean = 1.0F / kRanks;

/// Small whole numbers: their sums are exact in both types. Ranks differ by a factor.
float gradient_of(unsigned rank, std::size_t element) {
  return (static_cast<float>(element * 2654435761U >> 8U & 7U) - 3.0F) * static_cast<float>(rank + 1);
}

float mean_of(std::size_t element) {
  float sum = 0;
  for (unsigned rank = 0; rank < kRanks; ++rank) {
    sum += gradient_of(rank, element);
  }
  return sum * kMean;
}

template <typename T>
void add(T* __restrict into, const T* __restrict other, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    narrow(widen(into[i]) + widen(other[i]), into[i]);
  }
}

/// As Gloo asks for it: `sum` may be `a`.
template <typename T>
void add_up(void* sum, const void* a, const void* b, std::size_t count) {
  auto* to = static_cast<T*>(sum);
  const auto* one = static_cast<const T*>(a);
  const auto* other = static_cast<const T*>(b);
  for (std::size_t i = 0; i < count; ++i) {
    narrow(widen(one[i]) + widen(other[i]), to[i]);
  }
}

void add_wide(float* __restrict into, const Bfloat16* one, const Bfloat16* other, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    into[i] = widen(one[i]) + widen(other[i]);
  }
}

float mean_of_both(Bfloat16* __restrict into, const float* one, const float* other, std::size_t count) {
  float squares = 0;
  for (std::size_t i = 0; i < count; ++i) {
    narrow((one[i] + other[i]) * kMean, into[i]);
    const float value = widen(into[i]);
    squares += value * value;
  }
  return squares;
}

float squares_of(const Bfloat16* values, std::size_t count) {
  float squares = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = widen(values[i]);
    squares += value * value;
  }
  return squares;
}

template <typename T>
float mean(T* values, std::size_t count) {
  float squares = 0;
  for (std::size_t i = 0; i < count; ++i) {
    narrow(widen(values[i]) * kMean, values[i]);
    const float value = widen(values[i]);
    squares += value * value;
  }
  return squares;
}

template <typename T>
class NodeFloor {
 public:
  NodeFloor(unsigned node, bench::GlooRing& ring, std::size_t count, std::size_t bucket, unsigned threads)
      : node_(node),
        ring_(ring),
        team_(threads),
        count_(count),
        bucket_(bucket),
        a_(map_elements<T>(count)),
        b_(map_elements<T>(count)) {
    double squares = 0;
    for (std::size_t i = 0; i < count; ++i) {
      squares += double{mean_of(i)} * mean_of(i);
    }
    coefficient_ = std::min(1.0, kMaxNorm / std::sqrt(squares));
  }

  NodeFloor(const NodeFloor&) = delete;
  NodeFloor& operator=(const NodeFloor&) = delete;
  virtual ~NodeFloor() = default;

  void fill() {
    for (std::size_t i = 0; i < count_; ++i) {
      narrow(gradient_of(node_ * kRanks / kNodes, i), a_[i]);
      narrow(gradient_of(node_ * kRanks / kNodes + 1, i), b_[i]);
    }
  }

  void step() {
    double squares = 0;
    for (std::size_t first = 0; first < count_; first += bucket_) {
      squares += reduce_bucket(a_ + first, b_ + first, std::min(bucket_, count_ - first));
    }
    const auto coefficient = static_cast<float>(std::min(1.0, kMaxNorm / std::sqrt(squares)));
    team_.pass(count_, [this, coefficient](std::size_t at, std::size_t length) {
      scale(a_ + at, b_ + at, length, coefficient);
      return 0.0;
    });
  }

  /// bfloat16 has 8 bits, and sums of squares in float32 are not exact.
  [[nodiscard]] std::optional<std::string> wrong() const {
    const double tolerance = sizeof(T) == 2 ? 1e-2 : 1e-3;
    for (std::size_t i = 0; i < count_; i += bench::kSampledStep) {
      const double expected = mean_of(i) * coefficient_;
      for (const T* rank : {a_, b_}) {
        if (std::abs(double{widen(rank[i])} - expected) > tolerance * std::abs(expected)) {
          return "element " + std::to_string(i) + " is " + std::to_string(widen(rank[i])) + ", not " +
                 std::to_string(expected);
        }
      }
    }
    return std::nullopt;
  }

 protected:
  /// Leaves the mean of all ranks in `a`, and gives its sum of squares.
  virtual double reduce_bucket(T* a, const T* b, std::size_t count) {
    team_.pass(count, [=](std::size_t at, std::size_t length) {
      add(a + at, b + at, length);
      return 0.0;
    });
    ring_.sum(std::span(a, count), &add_up<T>);
    return team_.pass(count, [=](std::size_t at, std::size_t length) { return double{mean(a + at, length)}; });
  }

  unsigned node_;
  bench::GlooRing& ring_;
  Team team_;

 private:
  std::size_t count_;
  std::size_t bucket_;
  T* a_;
  T* b_;
  double coefficient_ = 1;
};

/// Each node rounds one half of a bucket.
class RoundOnceFloor : public NodeFloor<Bfloat16> {
 public:
  RoundOnceFloor(unsigned node, bench::GlooRing& ring, std::size_t count, std::size_t bucket, unsigned threads)
      : NodeFloor(node, ring, count, bucket, threads), sums_(bucket), received_(bucket) {}

 protected:
  double reduce_bucket(Bfloat16* a, const Bfloat16* b, std::size_t count) override {
    const std::size_t half = count / 2;
    const std::size_t mine = node_ == 0 ? 0 : half;
    const std::size_t mine_count = node_ == 0 ? half : count - half;
    const std::size_t theirs = node_ == 0 ? half : 0;
    const std::size_t theirs_count = count - mine_count;
    float* const sums = sums_.data();
    float* const received = received_.data();
    team_.pass(count, [=](std::size_t at, std::size_t length) {
      add_wide(sums + at, a + at, b + at, length);
      return 0.0;
    });
    ring_.swap(std::span(sums + theirs, theirs_count), std::span(received, mine_count));
    double squares = team_.pass(mine_count, [=](std::size_t at, std::size_t length) {
      return double{mean_of_both(a + mine + at, sums + mine + at, received + at, length)};
    });
    ring_.swap(std::span(a + mine, mine_count), std::span(a + theirs, theirs_count));
    squares += team_.pass(theirs_count, [=](std::size_t at, std::size_t length) {
      return double{squares_of(a + theirs + at, length)};
    });
    return squares;
  }

 private:
  std::vector<float> sums_;
  std::vector<float> received_;
};

template <typename Floor>
int serve(unsigned node, bench::GlooRing& ring, char** arguments, std::size_t element_size) {
  const std::size_t bucket = std::stoul(arguments[6]) / element_size;
  Floor floor(node, ring, std::stoul(arguments[5]), bucket, static_cast<unsigned>(std::stoul(arguments[7])));
  return bench::answer_lines(floor);
}

int run(char** arguments) {
  const auto node = static_cast<unsigned>(std::stoul(arguments[1]));
  const std::string type = arguments[4];
  bench::GlooRing ring(node, arguments[2], arguments[3]);
  if (type == "float32") {
    return serve<NodeFloor<float>>(node, ring, arguments, sizeof(float));
  }
  return type == "bfloat16" ? serve<NodeFloor<Bfloat16>>(node, ring, arguments, sizeof(Bfloat16))
                            : serve<RoundOnceFloor>(node, ring, arguments, sizeof(Bfloat16));
}

bool known(const std::string& type) { return type == "float32" || type == "bfloat16" || type == "bfloat16_once"; }

}  // namespace
}  // namespace gradsync::floors

int main(int count, char** arguments) {
  if (count != 8 || !gradsync::floors::known(arguments[4])) {
    std::fprintf(
        stderr,
        "usage: bench_gloo_step NODE ADDRESS STORE_FOLDER float32|bfloat16|bfloat16_once ELEMENTS BUCKET_BYTES "
        "THREADS\n"
    );
    return 64;
  }
  try {
    return gradsync::floors::run(arguments);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return EXIT_FAILURE;
  }
}
