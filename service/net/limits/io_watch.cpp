#include "net/limits/io_watch.hpp"

#include "base/assert.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <ctime>

namespace gradsync::net {

namespace {

constexpr std::chrono::minutes kLogEvery{1};
constexpr Milliseconds kProcessorReadingLasts{1};

/// The processor time of the calling thread, user and system.
Duration processor_time() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

prometheus::Counter& long_turns(prometheus::Registry& registry, const char* why) {
  return prometheus::BuildCounter()
      .Name("gradsync_io_long_turns_total")
      .Help("Turns of the io thread above 50 ms: it computed, or it was held up (scheduler, quota, a call that blocks)."
      )
      .Register(registry)
      .Add({{"why", why}});
}

double ms(Duration duration) { return seconds(duration) * 1e3; }

}  // namespace

IoWatch::IoWatch(prometheus::Registry& registry)
    : seconds_(prometheus::BuildHistogram()
                   .Name("gradsync_io_turn_seconds")
                   .Help("Time of one handler on the io thread.")
                   .Register(registry)
                   .Add({}, prometheus::Histogram::BucketBoundaries{1e-4, 1e-3, 1e-2, 0.05, 0.1, 1, 10})),
      computed_(long_turns(registry, "computed")),
      held_up_(long_turns(registry, "held_up")) {}

IoWatch::Turn::Turn(IoWatch& watch, const char* what, std::string_view text)
    : watch_(watch), what_(what), text_(text), outermost_(!watch.inside_) {
  if (outermost_) {
    watch_.inside_ = true;
    begin_ = std::chrono::steady_clock::now();
    watch_.begin(begin_);
  }
}

IoWatch::Turn::~Turn() {
  if (outermost_) {
    watch_.inside_ = false;
    watch_.end(*this, std::chrono::steady_clock::now());
  }
}

Duration IoWatch::Turn::computed() const { return watch_.computed(begin_, std::chrono::steady_clock::now()); }

Duration IoWatch::computed(TimePoint begin, TimePoint now) const {
  const Duration took = now - begin;
  if (took < kProcessorReadingLasts) {
    return took;  // not worth a system call
  }
  // The time that the thread used between the reading and the begin of the turn does not belong to the turn; it is at
  // most that interval.
  const Duration used = processor_time() - processor_.used - (begin - processor_.at);
  return std::clamp(used, Duration::zero(), took);
}

void IoWatch::begin(TimePoint now) {
  if (now - processor_.at >= kProcessorReadingLasts) {
    processor_ = {now, processor_time()};
  }
}

void IoWatch::end(const Turn& turn, TimePoint now) {
  const Duration took = now - turn.begin_;
  seconds_.Observe(seconds(took));
  const bool limited = abort_above_.count() > 0;
  if (took <= (limited ? std::min<Duration>(kLongTurn, abort_above_) : kLongTurn)) {
    return;
  }
  const Duration computed = this->computed(turn.begin_, now);
  std::string what = described(turn.what_, turn.text_);
  if (limited && computed > abort_above_) {
    const std::string why = fmt::format(
        "the io thread computed for {:.0f} ms in '{}', the limit is {} ms", ms(computed), what, abort_above_.count()
    );
    spdlog::critical("{}", why);
    spdlog::shutdown();  // another thread writes the log
    GRADSYNC_ASSERT(computed <= abort_above_, why.c_str());
  }
  if (took <= kLongTurn) {
    return;
  }
  if (computed > kLongTurn) {
    computed_.Increment();
    note(unsaid_computed_, computed, std::move(what), now);
  } else {
    held_up_.Increment();
    note(unsaid_held_up_, took, std::move(what), now);
  }
}

void IoWatch::note(Unsaid& unsaid, Duration took, std::string what, TimePoint now) {
  ++unsaid.turns;
  if (took > unsaid.longest) {
    unsaid.longest = took;
    unsaid.what = std::move(what);
  }
  if (unsaid.logged != TimePoint{} && now - unsaid.logged < kLogEvery) {
    return;
  }
  spdlog::warn(
      "the io thread {} for more than {} ms {} times, the longest {:.0f} ms: {}",
      unsaid.how,
      kLongTurn.count(),
      unsaid.turns,
      ms(unsaid.longest),
      unsaid.what
  );
  unsaid = {unsaid.how, now, 0, {}, {}};
}

/// The text may be anything that a client sends, so of the method only what a name is made of is shown.
std::string IoWatch::described(const char* what, std::string_view text) {
  if (text.empty()) {
    return what;
  }
  constexpr std::string_view kKey = "\"method\"";
  constexpr std::size_t kLookAt = 512;
  constexpr std::size_t kLongestName = 32;
  std::string method;
  const std::string_view head = text.substr(0, kLookAt);
  if (const std::size_t key = head.find(kKey); key != std::string_view::npos) {
    std::size_t at = std::min(head.find('"', key + kKey.size()), head.size() - 1) + 1;
    const auto is_of_name = [](char letter) {
      return (letter >= 'a' && letter <= 'z') || letter == '.' || letter == '_';
    };
    for (; at < head.size() && is_of_name(head[at]) && method.size() < kLongestName; ++at) {
      method += head[at];
    }
  }
  return fmt::format("{} {}, {} bytes", what, method.empty() ? "of no known method" : method, text.size());
}

}  // namespace gradsync::net
