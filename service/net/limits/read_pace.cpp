#include "net/limits/read_pace.hpp"

#include <algorithm>

namespace gradsync::net {

ReadPace::ReadPace(const ContextPtr& context, const PeerIdentity& peer, ConnectionId id, Milliseconds longest)
    : context_(context), peer_(peer), id_(id), longest_(longest), timer_(context->io.get_executor()) {}

void ReadPace::charge(FairShare::Worth worth, Duration cost, TimePoint now) {
  const Duration prepaid = std::min(prepaid_, cost);
  if (context_->fair_share.charge(peer_, id_, worth, cost, now, prepaid) > Duration::zero()) {
    (worth == FairShare::Worth::Refused ? owes_refused_ : owes_understood_) = true;
  }
  prepaid_ -= prepaid;
  spent_ += cost;
}

void ReadPace::charge_frame(Duration cost) {
  const TimePoint now = std::chrono::steady_clock::now();
  if (now - last_frame_ < kFreeAfter) {
    charge(FairShare::Worth::Refused, cost, now);
  }
  last_frame_ = now;
}

ReadPace::Turn ReadPace::next_of_debtor() {
  if (stopped_) {
    return Turn::Stopped;
  }
  const TimePoint now = std::chrono::steady_clock::now();
  const auto pause_for = [&](bool owes, FairShare::Worth worth) {
    return owes ? context_->fair_share.pause(peer_, id_, worth, now) : Duration::zero();
  };
  const Duration pause = std::max(
      pause_for(owes_understood_, FairShare::Worth::Understood), pause_for(owes_refused_, FairShare::Worth::Refused)
  );
  const bool waited = waits_since_ != TimePoint{};
  if (pause == Duration::zero()) {
    if (waited) {  // the next message may cost as much, or a request of HTTP that
      const Duration next = std::max<Duration>(spent_, FairShare::kShortestPause);
      const auto worth = owes_refused_ ? FairShare::Worth::Refused : FairShare::Worth::Understood;
      context_->fair_share.prepay(peer_, id_, worth, next - std::min(next, prepaid_), now);
      prepaid_ = std::max(prepaid_, next);
    }
    owes_understood_ = owes_refused_ = false;
    spent_ = {};
    waits_since_ = {};
    return Turn::Go;
  }
  if (!waited) {
    context_->metrics.read_pauses.Increment();
    waits_since_ = now;
  }
  const Duration left = longest_ - (now - waits_since_);
  if (left <= Duration::zero()) {
    return Turn::TooLong;
  }
  timer_.expires_after(std::min(pause, left));
  return Turn::Wait;
}

}  // namespace gradsync::net
