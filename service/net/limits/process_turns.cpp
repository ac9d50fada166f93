#include "net/limits/process_turns.hpp"

#include <iterator>
#include <utility>

namespace gradsync::net {

ProcessTurns::ProcessTurns(std::function<void(std::function<void()>)> post) : post_(std::move(post)) {}

bool ProcessTurns::free(const Process& process) const {
  const auto found = accounts_.find(process);
  return found == accounts_.end() || (found->second.used <= kTurn && found->second.idle());
}

ProcessTurns::Ticket ProcessTurns::wait(const Process& process, std::function<bool()> wake) {
  Account& account = accounts_[process];
  account.waiting.push_back({++last_ticket_, std::move(wake)});
  if (!account.waking && account.woken == 0) {
    wake_soon(process, account);
  }
  return last_ticket_;
}

void ProcessTurns::end(const Process& process, Ticket ticket) {
  const auto found = accounts_.find(process);
  if (found == accounts_.end()) {
    return;
  }
  Account& account = found->second;
  std::erase_if(account.waiting, [ticket](const Waiting& waiting) { return waiting.ticket == ticket; });
  if (account.woken == ticket) {
    account.woken = 0;
    if (!account.waiting.empty()) {
      wake_soon(process, account);
    }
  }
}

void ProcessTurns::post(std::function<void(ProcessTurns&)> later) {
  post_([weak = weak_from_this(), later = std::move(later)] {
    if (const auto turns = weak.lock()) {
      later(*turns);
    }
  });
}

void ProcessTurns::wake_soon(const Process& process, Account& account) {
  account.waking = true;
  post([process](ProcessTurns& turns) { turns.wake_next(process); });
}

void ProcessTurns::wake_next(const Process& process) {
  Account& account = accounts_[process];
  account.waking = false;
  while (account.woken == 0 && !account.waiting.empty()) {
    const Waiting next = std::move(account.waiting.front());
    account.waiting.pop_front();
    account.woken = next.wake() ? next.ticket : 0;
  }
}

void ProcessTurns::used(const Process& process, Duration computed) {
  Account& account = accounts_[process];
  account.used += computed;
  if (account.used > kTurn / 2 && !std::exchange(round_ends_, true)) {
    post([](ProcessTurns& turns) { turns.end_round(); });
  }
}

void ProcessTurns::end_round() {
  round_ends_ = false;
  for (auto at = accounts_.begin(); at != accounts_.end();) {
    at->second.used = {};
    at = at->second.idle() ? accounts_.erase(at) : std::next(at);
  }
}

}  // namespace gradsync::net
