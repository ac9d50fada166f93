// The picture of `gradsyncd policy replay --plot`.

#include "app/replay/policy_replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace gradsync::app {

namespace {

constexpr double kWidth = 1000;
constexpr double kHeight = 480;
constexpr double kLeft = 70;
constexpr double kTop = 20;
constexpr double kBottom = 40;
constexpr double kLegendLine = 18;
constexpr double kRadius = 1.5;
constexpr const char* kColours[] = {
    "#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf"};

const char* colour_of(std::size_t policy) { return kColours[policy % std::size(kColours)]; }

bool shows(double value) { return value > 0 && std::isfinite(value); }

/// Steps from left to right, norms on a logarithmic axis from the bottom up.
class Axes {
 public:
  Axes(std::size_t steps, double least, double greatest)
      : steps_(steps), low_(std::log10(least) - 0.05), high_(std::log10(greatest) + 0.05) {}

  [[nodiscard]] double x(std::size_t index) const {
    return kLeft + (kWidth - kLeft - 20) * static_cast<double>(index) /
                       static_cast<double>(std::max<std::size_t>(steps_ - 1, 1));
  }

  [[nodiscard]] double y(double value) const {
    return kTop + (kHeight - kTop - kBottom) * (high_ - std::log10(value)) / (high_ - low_);
  }

  [[nodiscard]] std::string frame(std::int64_t first, std::int64_t last) const {
    std::string svg;
    for (double decade = std::floor(low_); decade <= high_; ++decade) {
      for (const double digit : {1, 2, 5}) {
        svg += grid_line(digit * std::pow(10, decade));
      }
    }
    svg += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\">step {}</text><text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">step "
        "{}</text>\n",
        kLeft,
        kHeight - kBottom + 18,
        first,
        kWidth - 20,
        kHeight - kBottom + 18,
        last
    );
    return svg;
  }

 private:
  [[nodiscard]] std::string grid_line(double value) const {
    const double at = y(value);
    if (at < kTop || at > kHeight - kBottom) {
      return "";
    }
    return fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
        kLeft,
        kWidth - 20,
        at,
        kLeft - 6,
        at + 4,
        value
    );
  }

  std::size_t steps_;
  double low_;
  double high_;
};

/// The steps that share a column of the picture.
std::size_t steps_in_a_column(std::size_t steps) { return (steps + 899) / 900; }

std::string dots(
    const Axes& axes,
    std::span<const RecordedNorm> norms,
    const char* colour,
    const std::vector<bool>& shown,
    double radius
) {
  std::string svg = fmt::format("<g fill=\"{}\">\n", colour);
  const std::size_t column = steps_in_a_column(norms.size());
  for (std::size_t begin = 0; begin < norms.size(); begin += column) {
    double least = std::numeric_limits<double>::infinity();
    double greatest = 0;
    for (std::size_t i = begin; i < std::min(begin + column, norms.size()); ++i) {
      if (shown[i] && shows(norms[i].norm)) {
        least = std::min(least, norms[i].norm);
        greatest = std::max(greatest, norms[i].norm);
      }
    }
    if (greatest > 0) {
      svg +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"/>\n", axes.x(begin), axes.y(greatest), radius);
    }
    if (greatest > least) {
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"/>\n", axes.x(begin), axes.y(least), radius);
    }
  }
  return svg + "</g>\n";
}

/// Broken where there is no threshold.
std::string line(const Axes& axes, const Replay& replay, const char* colour) {
  std::string path;
  bool drawn = false;
  const std::size_t column = steps_in_a_column(replay.outcomes.size());
  for (std::size_t i = 0; i < replay.outcomes.size(); i += column) {
    const double threshold = replay.outcomes[i].threshold;
    if (shows(threshold)) {
      path += fmt::format("{}{:.1f} {:.1f}", drawn ? "L" : "M", axes.x(i), axes.y(threshold));
    }
    drawn = shows(threshold);
  }
  return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n", path, colour);
}

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char byte : text) {
    safe += byte == '<' ? "&lt;" : byte == '&' ? "&amp;" : std::string(1, byte);
  }
  return safe;
}

/// Axes on which all norms and thresholds lie.
Axes axes_for(std::span<const RecordedNorm> norms, std::span<const Replay> replays) {
  double least = std::numeric_limits<double>::infinity();
  double greatest = 0;
  const auto take = [&](double value) {
    if (shows(value)) {
      least = std::min(least, value);
      greatest = std::max(greatest, value);
    }
  };
  for (const RecordedNorm& entry : norms) {
    take(entry.norm);
  }
  for (const Replay& replay : replays) {
    for (const plan::ClipOutcome& outcome : replay.outcomes) {
      take(outcome.threshold);
    }
  }
  return Axes(norms.size(), greatest > 0 ? least : 0.1, greatest > 0 ? greatest : 1);
}

}  // namespace

std::string plot_thresholds(std::span<const RecordedNorm> norms, std::span<const Replay> replays) {
  const Axes axes = axes_for(norms, replays);
  const double height = kHeight + kLegendLine * static_cast<double>(replays.size() + 1);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n",
      kWidth,
      height
  );
  svg += axes.frame(norms.front().step, norms.back().step);
  svg += dots(axes, norms, "#999", std::vector<bool>(norms.size(), true), kRadius);
  svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"#777\">norm before clipping</text>\n", kLeft, kHeight);
  for (std::size_t i = 0; i < replays.size(); ++i) {
    std::vector<bool> clipped;
    for (const plan::ClipOutcome& outcome : replays[i].outcomes) {
      clipped.push_back(outcome.clipped);
    }
    // Dots get smaller, so that a norm that several policies clip shows a dot of each.
    const double radius = kRadius + 0.8 * static_cast<double>(replays.size() - 1 - i);
    svg += dots(axes, norms, colour_of(i), clipped, radius) + line(axes, replays[i], colour_of(i));
    svg += fmt::format(
        "<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"{}\">{}: {} of {} steps clipped</text>\n",
        kLeft,
        kHeight + kLegendLine * static_cast<double>(i + 1),
        colour_of(i),
        escaped(replays[i].policy),
        replays[i].clipped(),
        norms.size()
    );
  }
  return svg + "</svg>\n";
}

}  // namespace gradsync::app
