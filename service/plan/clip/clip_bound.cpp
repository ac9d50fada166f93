#include "plan/clip/clip_bound.hpp"

#include <algorithm>
#include <cmath>

namespace gradsync::plan {

double ClipBound::threshold(double norm) const {
  if (kind != Kind::ZScore || !std::isfinite(norm)) {
    return begin;
  }
  const double score = (norm - mean) / (deviation + kScoreEpsilon);
  if (!(score > z)) {
    return std::max(begin, norm);  // `begin` is rounded: the score alone says what is clipped
  }
  const double eta = score / z;
  return mean + (z * deviation) / eta;
}

}  // namespace gradsync::plan
