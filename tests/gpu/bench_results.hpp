#pragma once
// Samples → medians → one JSON object per result, in the form of the project's other benchmarks.

#include <iosfwd>
#include <string>
#include <vector>

namespace gradsync::kernels {

/// Times are in microseconds. `floor` is what the same bytes take at the speed of the copy of the same round.
struct BenchResult {
  std::string name;
  std::string what;
  std::vector<double> ours;
  std::vector<double> floor;
  double moved_bytes = 0;  ///< per run of ours
};

double median(std::vector<double> values);

/// A list of results; `machine` is a JSON object.
void write_results(std::ostream& out, const std::vector<BenchResult>& results, const std::string& machine);

/// One line per result, for people.
void print_results(std::ostream& out, const std::vector<BenchResult>& results);

}  // namespace gradsync::kernels
