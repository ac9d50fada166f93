#pragma once
// The reports of the lane on their way to the engine, in the order of the lane. Commands are executed by the lane's
// thread, or, where they are small, by the io thread in the turn of the message that submits them. What is reported
// there needs no way through the loop: it is delivered as soon as that turn is over, before the socket is read again.
//
// Thread: `take` is called by whoever executes, one thread at a time; everything else is io only.

#include "app/in_order.hpp"
#include "app/post_memory.hpp"
#include "device/lane.hpp"
#include "net/io_watch.hpp"

#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace gradsync::app {

class LaneReports {
 public:
  using Deliver = std::function<void(device::LaneReport)>;

  /// Both outlive it, and it what it posts.
  LaneReports(boost::asio::io_context& io, net::IoWatch& watch, Deliver deliver)
      : io_(io), watch_(watch), deliver_(std::move(deliver)) {}

  /// The lane's sink.
  void take(device::LaneReport report) {
    if (io_.get_executor().running_in_this_thread() && inside_) {
      here_.push_back({taken_, std::move(report)});
    } else {
      post({taken_, std::move(report)});
    }
    ++taken_;  // not where that threw: the next report would wait for this one for ever
  }

  /// Result of `turn`; then what was reported within it is delivered, and what was reported within that. Not nested.
  template <typename Turn>
  auto after(Turn turn) {
    inside_ = true;
    const Leave leave{*this};
    const auto result = turn();
    if (!here_.empty()) {
      const net::IoWatch::Excused excused{watch_};  // a step is done for all its ranks, by the message that came last
      while (delivered_ < here_.size()) {
        arrive(std::move(here_[delivered_++]));
      }
    }
    return result;
  }

 private:
  struct Numbered {
    std::uint64_t number = 0;
    device::LaneReport report;
  };

  /// What was not delivered, because something threw, takes the way through the loop.
  struct Leave {
    LaneReports& reports;

    ~Leave() {
      reports.inside_ = false;
      while (reports.delivered_ < reports.here_.size()) {
        reports.post(std::move(reports.here_[reports.delivered_++]));
      }
      reports.here_.clear();
      reports.delivered_ = 0;
    }
  };

  void post(Numbered numbered) {
    auto deliver = [this, moved = std::move(numbered)]() mutable { arrive(std::move(moved)); };
    boost::asio::post(io_, boost::asio::bind_allocator(PostAllocator<std::byte>(post_memory_), std::move(deliver)));
  }

  void arrive(Numbered numbered) {
    in_order_.arrive(numbered.number, std::move(numbered.report), [this](device::LaneReport next) {
      deliver_(std::move(next));
    });
  }

  boost::asio::io_context& io_;
  net::IoWatch& watch_;
  Deliver deliver_;
  PostMemory post_memory_;
  std::uint64_t taken_ = 0;  ///< so far
  InOrder<device::LaneReport> in_order_;
  bool inside_ = false;         ///< in `after`
  std::vector<Numbered> here_;  ///< reported within it
  std::size_t delivered_ = 0;   ///< of those
};

}  // namespace gradsync::app
