#include "gpu/bench_results.hpp"

#include <algorithm>
#include <iomanip>
#include <ostream>

namespace gradsync::kernels {

namespace {

void write_list(std::ostream& out, const std::vector<double>& values) {
  out << '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    out << (i == 0 ? "" : ", ") << values[i];
  }
  out << ']';
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void write_results(std::ostream& out, const std::vector<BenchResult>& results, const std::string& machine) {
  out << std::setprecision(9) << "[\n";
  for (std::size_t i = 0; i < results.size(); ++i) {
    const BenchResult& result = results[i];
    const double ours = median(result.ours);
    const double floor = median(result.floor);
    out << "  {\"name\": \"" << result.name << "\", \"unit\": \"us\", \"ours\": " << ours
        << ", \"ratio\": null, \"floor\": " << floor << ", \"floor_ratio\": " << ours / floor
        << ", \"peers\": {}, \"config\": {\"what\": \"" << result.what << "\", \"moved_bytes\": " << result.moved_bytes
        << ", \"gigabytes_per_s\": " << result.moved_bytes / ours / 1e3 << "},\n   \"samples\": {\"ours\": ";
    write_list(out, result.ours);
    out << ", \"floor\": ";
    write_list(out, result.floor);
    out << "},\n   \"machine\": " << machine << (i + 1 == results.size() ? "}\n" : "},\n");
  }
  out << "]\n";
}

void print_results(std::ostream& out, const std::vector<BenchResult>& results) {
  out << std::fixed;
  for (const BenchResult& result : results) {
    const double ours = median(result.ours);
    out << std::left << std::setw(28) << result.name << std::right << std::setprecision(1) << std::setw(10) << ours
        << " us" << std::setw(9) << result.moved_bytes / ours / 1e3 << " GB/s" << std::setprecision(3) << std::setw(8)
        << ours / median(result.floor) << " of the floor\n";
  }
}

}  // namespace gradsync::kernels
