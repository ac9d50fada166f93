#pragma once
// Trainers that mostly behave and sometimes do not, around one engine: the model that random_test.cpp runs. It knows
// what each rank asked for and checks every answer against that; a breach is a line of text.

#include "engine/engine.hpp"
#include "engine/metrics.hpp"
#include "fakes/inline_planner.hpp"
#include "unit/engine/checked_lane.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace gradsync::engine {

class RandomWorld {
 public:
  explicit RandomWorld(std::uint64_t seed) : random_(seed) {
    engine_.advance(now_);
    const std::size_t jobs = 1 + below(2);
    for (std::size_t job = 0; job < jobs; ++job) {
      runs_.push_back({fmt::format("job{}", job), 1 + static_cast<std::int64_t>(below(4)), 0});
      for (std::int64_t rank = 0; rank < runs_[job].world_size; ++rank) {
        members_.emplace_back();
        members_.back().run = job;
        members_.back().rank = rank;
      }
    }
  }

  void event() {
    const std::size_t choice = below(100);
    if (choice < 32) {
      answer_lane();
    } else if (choice < 44) {
      answer_planner();
    } else if (choice < 90) {
      behave(members_[below(members_.size())]);
    } else {
      misbehave(members_[below(members_.size())]);
    }
    settle();
  }

  /// Nobody pauses, nothing fails any more, and time passes: every call that waits has to end.
  void wait_out() {
    lane_.fails = false;
    for (Member& member : members_) {
      if (member.attached) {
        static_cast<void>(engine_.pause(member.session, false));
        member.paused = false;
      }
    }
    pump();
    for (int i = 0; i < 100 && engine_.next_deadline(); ++i) {
      now_ = std::max(now_, *engine_.next_deadline());
      advance();
      pump();
    }
    expect(!engine_.next_deadline(), "deadlines never end");
    for (const auto& call : calls_) {
      expect(call->answers > 0, "{} of rank {} waits although all time is over", call->method, call->rank);
    }
  }

  /// All ranks leave; nothing may be left behind.
  void clear_out() {
    for (Member& member : members_) {
      if (member.attached) {
        leave(member);
        settle();
      }
    }
    pump();
    for (const auto& call : calls_) {
      expect(
          call->answers == 1,
          "{} of rank {} has {} answers after all ranks left",
          call->method,
          call->rank,
          call->answers
      );
    }
    expect(lane_.empty_handed(), "the lane still holds memory, a plan or a command");
    expect(engine_.status(std::nullopt).empty(), "an empty job is still there");
    expect(engine_.idle() && !engine_.next_deadline(), "an engine without ranks is not idle");
    expect(
        metrics_.jobs.Value() == 0 && metrics_.ranks_attached.Value() == 0 && metrics_.arena_bytes.Value() == 0,
        "gauges are not 0"
    );
  }

  [[nodiscard]] std::vector<std::string> breaches() const {
    std::vector<std::string> all = breaches_;
    all.insert(all.end(), lane_.breaches.begin(), lane_.breaches.end());
    return all;
  }

  std::map<std::string, int> seen;  ///< outcomes by kind: whether the test gets anywhere

 private:
  enum class Form { Finish, Norm, Clip };
  using Attempt = std::pair<std::uint64_t, std::uint64_t>;

  /// One life of a job in the engine.
  struct Life {
    std::int64_t world_size = 1;
    std::set<device::BufferId> buffers;
    std::map<Attempt, std::map<std::int64_t, std::set<std::pair<std::int64_t, Form>>>>
        asked;                                                                  ///< by rank: step and form
    std::map<std::tuple<std::uint64_t, std::uint64_t, bool>, StepReport> told;  ///< bool: the step is done
  };

  struct Run {
    std::string job;
    std::int64_t world_size;
    std::int64_t restart_count;
    std::shared_ptr<Life> life = {};
    bool other_plan = false;
  };

  struct Call {
    const char* method;
    std::int64_t rank;
    StepKey key;
    std::shared_ptr<Life> life;
    std::string job;
    int answers = 0;
    bool early = false;  ///< failed while the lane still had work of its attempt
  };

  struct Member {
    std::size_t run = 0;
    std::int64_t rank = 0;
    std::int64_t pid = 0;
    std::string client;
    SessionId session = 0;
    bool attached = false;
    bool connected = false;
    bool paused = false;
    bool declared = false;
    bool norm_given = false;
    std::uint64_t buffer = 0;
    StepKey key;
    std::set<std::uint32_t> notified;
    std::shared_ptr<Call> stepping;
    std::shared_ptr<Call> declaring;
  };

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  bool chance(int n) { return below(static_cast<std::size_t>(n)) == 0; }

  template <typename... Args>
  void expect(bool held, fmt::format_string<Args...> text, Args&&... args) {
    if (!held) {
      breaches_.push_back(fmt::format(text, std::forward<Args>(args)...));
    }
  }

  static EngineOptions options() {
    EngineOptions options;
    options.buckets = {32, 32};
    options.deadlines.declare = Milliseconds(30'000);
    options.deadlines.first_step = Milliseconds(120'000);
    options.deadlines.step = Milliseconds(60'000);
    return options;
  }

  // ---- the world around the engine

  void answer_lane() {
    if (!lane_.commands.empty()) {
      engine_.on_lane_report(device::kHostLane, lane_.answer_next());
    }
  }

  void answer_planner() {
    if (!planner_.requests.empty()) {
      engine_.on_plan(planner_.plan_next());
    }
  }

  void pump() {
    while (!lane_.commands.empty() || !planner_.requests.empty()) {
      answer_planner();
      answer_lane();
      settle();
    }
  }

  void advance() {
    engine_.advance(now_);
    const auto due = engine_.next_deadline();
    expect(!due || *due > now_, "the next deadline lies in the past");
    std::set<std::pair<std::string, std::int64_t>> present;
    std::set<std::string> jobs;
    for (const JobStatus& job : engine_.status(std::nullopt)) {
      jobs.insert(job.job);
      for (const RankStatus& rank : job.ranks) {
        present.emplace(job.job, rank.pid);
      }
    }
    std::set<std::string> inhabited;
    for (Member& member : members_) {
      if (member.attached && !present.contains({runs_[member.run].job, member.pid})) {
        expect(!member.connected, "rank {} was given up although it is connected", member.rank);
        gone(member);
      }
      if (member.attached) {
        inhabited.insert(runs_[member.run].job);
      }
    }
    expect(jobs == inhabited, "jobs without ranks, or ranks without jobs");
  }

  // Whether a failure was told early shows only now: an epoch that rose at the same moment makes it a late call.
  void settle() {
    for (const auto& call : early_) {
      const auto jobs = engine_.status(std::nullopt);
      const auto job =
          std::find_if(jobs.begin(), jobs.end(), [&](const JobStatus& status) { return status.job == call->job; });
      expect(
          job != jobs.end() && job->epoch > call->key.epoch,
          "{} of rank {} failed while the lane worked on it",
          call->method,
          call->rank
      );
    }
    early_.clear();
  }

  // ---- ranks

  AttachRequest request(const Member& member) {
    const Run& run = runs_[member.run];
    AttachRequest request;
    request.job = run.job;
    request.uid = 1000;
    request.pid = member.pid;
    request.client_id = member.client;
    request.rank = member.rank;
    request.world_size = run.world_size;
    request.meshes = {{"default", {{"dp", run.world_size}}, {}}};
    request.restart_count = run.restart_count;
    return request;
  }

  void attach(Member& member, bool new_process, bool new_client) {
    if (new_process) {
      member.pid = ++last_id_;
    }
    if (new_client) {
      member.client = fmt::format("client{}", ++last_id_);
    }
    Run& run = runs_[member.run];
    const bool lives = std::any_of(members_.begin(), members_.end(), [&](const Member& other) {
      return other.run == member.run && other.attached;
    });
    if (!lives) {
      run.life = std::make_shared<Life>();
      run.life->world_size = run.world_size;
    }
    const Result<AttachResult> result = engine_.attach(request(member));
    expect(result.has_value(), "attach of rank {} was refused: {}", member.rank, result ? "" : result.error().message);
    if (!result) {
      return;
    }
    if (!result->resumed) {
      gone(member);
      member.key = {result->epoch, result->attempt};
    }
    member.session = result->session;
    member.attached = member.connected = true;
  }

  static void gone(Member& member) {
    member.attached = member.connected = member.paused = member.declared = member.norm_given = false;
    member.buffer = 0;
    member.notified.clear();
    member.stepping.reset();
    member.declaring.reset();
  }

  void leave(Member& member) {
    if (chance(2)) {
      engine_.process_exited(member.session);
    } else {
      static_cast<void>(engine_.detach(member.session));
    }
    gone(member);
  }

  void restart(Member& member) {
    Run& run = runs_[member.run];
    ++run.restart_count;
    run.life.reset();
    superseding_ = true;
    for (Member& other : members_) {
      if (other.run == member.run) {
        gone(other);
      }
    }
    attach(member, true, true);
    superseding_ = false;
  }

  // ---- what a trainer does

  void behave(Member& member) {
    if (!member.attached) {
      attach(member, true, true);
    } else if (!member.connected) {
      attach(member, false, false);
    } else if (member.paused && chance(4)) {
      pause(member, false);
    } else if (member.buffer == 0) {
      allocate(member);
    } else if (!member.declared) {
      if (!member.declaring) {
        declare(member);
      }
    } else if (!member.stepping) {
      step(member);
    }
  }

  void misbehave(Member& member) {
    if (chance(2)) {
      now_ += Milliseconds(std::vector<int>{1, 300, 1000, 2000, 20'000, 100'000}[below(6)]);
      advance();
      return;
    }
    if (!member.attached) {
      return;
    }
    switch (below(14)) {
      case 0:
        leave(member);
        break;
      case 1:
        engine_.connection_lost(member.session);
        member.connected = false;
        break;
      case 2:
        attach(member, false, false);
        break;  // resumes without having been lost
      case 3:
        attach(member, false, true);
        break;  // a notebook that runs again
      case 4:
        if (chance(3)) {
          restart(member);
        }
        break;
      case 5: {
        AttachRequest thief = request(member);
        thief.pid = ++last_id_;
        thief.client_id = "thief";
        expect(!engine_.attach(thief), "a live rank was taken");
        break;
      }
      case 6:
        pause(member, !member.paused);
        break;
      case 7:
        if (chance(3)) {
          runs_[member.run].other_plan = !runs_[member.run].other_plan;
          declare(member);
        }
        break;
      case 8:
        if (chance(3)) {
          static_cast<void>(engine_.release(member.session, member.buffer));
          member.buffer = 0;
          member.declared = false;
        }
        break;
      default:
        step(member);
        break;  // again, while the first call waits
    }
  }

  void pause(Member& member, bool paused) {
    static_cast<void>(engine_.pause(member.session, paused));
    member.paused = paused;
  }

  void allocate(Member& member) {
    const Result<BufferGrant> grant = engine_.allocate(member.session, 4096);
    expect(grant.has_value(), "no arena");
    if (grant) {
      member.buffer = grant->buffer;
      runs_[member.run].life->buffers.insert(grant->buffer);
    }
  }

  static plan::RankDeclaration declaration(bool other) {
    plan::RankDeclaration all;
    all.options.clip = {{"all", {1.0, plan::ZeroRule::Off}}, {"b", {1.0, plan::ZeroRule::Refuse}}};
    for (int i = 0; i < (other ? 2 : 4); ++i) {
      plan::TensorDeclaration& tensor = all.tensors.own().emplace_back();
      tensor.name = fmt::format("t{}", i);
      tensor.shape = tensor.local_shape = {8};
      tensor.mesh = "default";
      tensor.layer = fmt::format("layer{}", i / 2);
      tensor.clip_group = i == 1 ? "b" : "all";
      tensor.placements = {{{"dp"}, plan::Partial{plan::ReduceOp::Mean, std::nullopt}}};
    }
    return all;
  }

  std::shared_ptr<Call> call_of(const Member& member, const char* method) {
    auto call = std::make_shared<Call>();
    call->method = method;
    call->rank = member.rank;
    call->key = member.key;
    call->life = runs_[member.run].life;
    call->job = runs_[member.run].job;
    calls_.push_back(call);
    return call;
  }

  void declare(Member& member) {
    DeclareRequest request;
    request.declaration = declaration(runs_[member.run].other_plan != chance(40));
    if (chance(40)) {
      request.declaration.tensors.own()[0].placements[0].axes = {"tpp"};
    }
    request.buffer = member.buffer;
    const auto call = call_of(member, "declare");
    member.declaring = call;
    member.declared = false;
    engine_.declare(member.session, std::move(request), [this, call, &member](const Result<DeclareResult>& result) {
      expect(++call->answers == 1, "declare was answered twice");
      ++seen[result ? "declared" : kind_of(result.error().code)];
      if (member.declaring != call) {
        return;
      }
      member.declaring.reset();
      if (result) {
        member.declared = true;
        restart_step(member, {result->epoch, result->attempt});
      }
    });
  }

  static void restart_step(Member& member, StepKey key) {
    member.key = key;
    member.norm_given = false;
    member.notified.clear();
  }

  void step(Member& member) {
    const std::size_t choice = below(10);
    const auto bucket = static_cast<std::uint32_t>(below(chance(30) ? 9 : 4));
    if (choice < 4 && !member.norm_given && (chance(30) || !member.notified.contains(bucket))) {
      member.notified.insert(bucket);
      engine_.bucket_ready(member.session, {key_for(member), bucket});
    } else if (choice == 4 && !member.norm_given) {
      engine_.tensor_unused(member.session, {member.key, {static_cast<std::uint32_t>(below(5))}});
    } else if (member.norm_given && !chance(30)) {
      clip(member);
    } else {
      finish(member);
    }
  }

  StepKey key_for(const Member& member) {
    StepKey key = member.key;
    if (chance(40)) {
      key.attempt += below(3);
    } else if (chance(60) && key.epoch > 1) {
      --key.epoch;
    }
    return key;
  }

  void finish(Member& member) {
    FinishRequest request;
    request.key = key_for(member);
    const auto label = static_cast<std::int64_t>(request.key.epoch * 1000 + request.key.attempt);
    request.step = label + (chance(60) ? 1 : 0);
    request.kind = (label % 3 == 0) != chance(60) ? FinishKind::NormOnly : FinishKind::Finish;
    request.ready_all = !chance(5);
    request.ready = {0, 1};
    request.scale = chance(60) ? 0.0 : chance(60) ? 2.0 : 1.0;
    request.override_max_norm = request.kind == FinishKind::Finish && label % 5 == 1;
    request.max_norm = 0.0;
    if (chance(10)) {
      request.unused = {static_cast<std::uint32_t>(below(4))};
    }
    const Form form = request.kind == FinishKind::Finish ? Form::Finish : Form::Norm;
    const auto call = asking(member, request.key, request.step, form);
    engine_.finish(member.session, std::move(request), listener(member, call));
  }

  void clip(Member& member) {
    ClipRequest request;
    request.key = key_for(member);
    request.step = static_cast<std::int64_t>(request.key.epoch * 1000 + request.key.attempt);
    const auto call = asking(member, request.key, request.step, Form::Clip);
    engine_.clip(member.session, request, listener(member, call));
  }

  std::shared_ptr<Call> asking(Member& member, const StepKey& key, std::int64_t step, Form form) {
    const auto call = call_of(member, form == Form::Finish ? "finish" : form == Form::Norm ? "norm" : "clip");
    call->key = key;
    call->life->asked[{key.epoch, key.attempt}][member.rank].emplace(step, form);
    member.stepping = call;
    return call;
  }

  Reply<RankReport> listener(Member& member, std::shared_ptr<Call> call) {
    return [this, call, &member](const Result<RankReport>& result) {
      expect(++call->answers == 1, "{} was answered twice", call->method);
      result ? check_success(*call, *result->report) : check_failure(call, result.error());
      if (member.stepping != call) {
        return;
      }
      member.stepping.reset();
      if (result) {
        restart_step(member, {result->report->epoch, result->report->next_attempt});
        member.norm_given = result->report->next_attempt == result->report->attempt;
        return;
      }
      const Error& error = result.error();
      if (error.epoch) {
        restart_step(member, {*error.epoch, *error.attempt});
      } else if (error.code == ErrorCode::StepMismatch) {
        member.norm_given = false;
      }
      if (error.code == ErrorCode::NotDeclared || error.code == ErrorCode::StaleEpoch) {
        member.declared = false;
      }
    };
  }

  void check_success(const Call& call, const StepReport& report) {
    const bool done = report.next_attempt != report.attempt;
    ++seen[done ? "committed" : "measured"];
    expect(
        report.epoch == call.key.epoch && report.attempt == call.key.attempt,
        "{} got the report of another attempt",
        call.method
    );
    expect(std::string(call.method) != "clip" || done, "clip was answered with a norm that is only measured");
    const auto [told, first] = call.life->told.try_emplace({report.epoch, report.attempt, done}, report);
    expect(told->second == report, "ranks got different reports");
    const auto& asked = call.life->asked[{report.epoch, report.attempt}];
    const auto all = [&](Form form) {
      for (std::int64_t rank = 0; rank < call.life->world_size; ++rank) {
        const auto of_rank = asked.find(rank);
        if (of_rank == asked.end() || !of_rank->second.contains({report.step, form})) {
          return false;
        }
      }
      return true;
    };
    expect(
        done ? all(Form::Finish) || all(Form::Clip) : all(Form::Norm),
        "step {} was reported but not asked for by all",
        report.step
    );
  }

  void check_failure(const std::shared_ptr<Call>& call, const Error& error) {
    ++seen[kind_of(error.code)];
    const bool ends = superseding_ || (error.epoch && Attempt{*error.epoch, *error.attempt} >
                                                          Attempt{call->key.epoch, call->key.attempt});
    if (ends && lane_.works_on(call->life->buffers, call->key.attempt)) {
      expect(!superseding_, "{} of rank {} was superseded while the lane worked on it", call->method, call->rank);
      early_.push_back(call);
    }
  }

  std::mt19937_64 random_;
  TimePoint now_{std::chrono::seconds(1000)};
  std::int64_t last_id_ = 100;
  CheckedLane lane_{[this](int n) { return chance(n); }};
  fakes::InlinePlanner planner_;
  prometheus::Registry registry_;
  EngineMetrics metrics_{registry_};
  Engine engine_{options(), Lanes(lane_), planner_, [](const Event&) {}, metrics_};
  std::vector<Run> runs_;
  std::deque<Member> members_;
  std::vector<std::shared_ptr<Call>> calls_;
  std::vector<std::shared_ptr<Call>> early_;
  std::vector<std::string> breaches_;
  bool superseding_ = false;
};

}  // namespace gradsync::engine
