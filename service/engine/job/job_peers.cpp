// What follows from what other nodes of the job do.

#include "engine/job/job.hpp"
#include "engine/peers/sums/node_plan.hpp"
#include "engine/peers/sums/node_sums.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

namespace gradsync::engine {

void Job::perform(PeerEvents events) {
  for (PeerEvent& event : events) {
    std::visit([this](auto& value) { perform(value); }, event);
  }
}

void Job::perform(PrepareEpoch& event) {
  const std::uint64_t epoch = event.epoch;
  gathered_ = std::move(event);
  perform(epochs_.on_prepare(epoch));
}

void Job::say_declared(LocalsChanged& changed) const {
  NodeDeclared& declared = *changed.declared;
  declared.settings = {
      context_.options.buckets.first_bytes,
      context_.options.buckets.bytes,
      context_.options.check_every,
      context_.options.encoded_bytes,
      context_.options.cpu_collectives ? "nccl" : ""};
  std::map<std::pair<ContentHash, std::uint64_t>, std::size_t> known;
  std::map<std::uint64_t, std::uint32_t> lists;
  for (const auto& [number, rank] : ranks_) {
    const auto [at, added] = known.try_emplace({rank.content.hash, rank.content.weights}, known.size());
    if (added) {
      DeclaredRanks ranks{rank.content.hash, {}, std::nullopt};
      if (const WeightFingerprints& weights = rank.declaration->weight_fingerprints; !weights.empty()) {
        const auto [list, first] = lists.try_emplace(rank.content.weights, static_cast<std::uint32_t>(lists.size()));
        if (first) {
          declared.weight_fingerprints.push_back(weights);
        }
        ranks.weights = list->second;
      }
      declared.by_content.push_back(std::move(ranks));
      changed.contents.push_back(rank.declaration);
    }
    std::vector<RankSpan>& spans = declared.by_content[at->second].ranks;
    if (!spans.empty() && spans.back().first + spans.back().second == number) {
      ++spans.back().second;
    } else {
      spans.emplace_back(number, 1);
    }
  }
  say_devices(declared);
}

/// Lanes are numbered as they come; where there is one, nothing has to be said.
void Job::say_devices(NodeDeclared& declared) const {
  std::map<device::LaneId, std::uint32_t> known;
  for (const auto& [number, rank] : ranks_) {
    const device::LaneId lane = context_.buffers.lane_of(rank.buffer);
    declared.devices.push_back(known.try_emplace(lane, static_cast<std::uint32_t>(known.size())).first->second);
  }
  if (known.size() < 2) {
    declared.devices.clear();
  }
}

void Job::ask_for_node(PlanRequest& request) const {
  request.by_rank = gathered_.by_rank;
  request.weights = gathered_.weights;
  request.node_of_rank = gathered_.node_of_rank;
  request.site_of_rank = gathered_.site_of_rank;
  request.lane_of_rank.clear();
  for (const auto& [number, rank] : ranks_) {
    const auto at = static_cast<std::size_t>(number);
    const device::LaneId lane = context_.buffers.lane_of(rank.buffer);
    if (request.lane_of_rank.empty()) {  // what other nodes have is not known here: as the first rank of this one
      request.lane_of_rank.assign(request.by_rank.size(), lane);
    }
    request.lane_of_rank[at] = lane;
    request.node = gathered_.node_of_rank[at];
  }
}

void Job::perform(PoliciesWanted& event) {
  const Result<PolicyExport> state = policies_.exported();
  perform(peers_->tell(LocalPolicies{event.epoch, state ? state->state : std::string()}));
}

void Job::perform(PoliciesGiven& event) {
  if (!epochs_.loads() || !active_) {
    return;
  }
  if (const Result<void> taken = policies_.take_given(event.state); !taken) {
    fail_load(taken.error());
    return;
  }
  tell_ready();
}

/// Connections of an epoch that is over are closed with the event.
void Job::perform(LinksReady& event) {
  if (epochs_.loads() && active_ && event.epoch == epochs_.epoch()) {
    active_->connecting = 1;
    context_.lanes[active_->shares.front().lane].submit(device::ConnectNodes{active_->id, std::move(event.connections)}
    );
  }
}

/// The lane knows both ends by their numbers.
Error Job::wire_error(const device::Failed& report) const {
  const bool known = report.node && *report.node < gathered_.node_names.size();
  const std::string name = known ? gathered_.node_names[*report.node] : std::string();
  Error error = make_error(
      ErrorCode::NodeLost,
      known ? fmt::format(
                  "the connection of node '{}' to node '{}' that gradients travel over was lost: {}",
                  peers_->node(),
                  name,
                  report.message
              )
            : fmt::format("a connection that gradients travel over was lost: {}", report.message),
      "the epoch forms again, with new connections, when the node is back"
  );
  error.node = name;
  for (std::size_t rank = 0; known && rank < gathered_.node_of_rank.size(); ++rank) {
    if (gathered_.node_of_rank[rank] == *report.node) {
      error.ranks.push_back(static_cast<std::int64_t>(rank));
    }
  }
  return error;
}

void Job::perform(LinksFailed& event) {
  if (event.epoch == epochs_.epoch()) {
    fail_load(event.error);
  }
}

void Job::perform(BeginEpoch&) {
  fresh_communicators_ = false;
  perform(epochs_.on_begin());
}

void Job::perform(EpochEnded& event) {
  if (event.error.code == ErrorCode::NodeLost && !(machine_ && machine_->begun())) {
    keep_dump(event.error);  // else the attempt fails, and its dump has more
  }
  perform(
      event.declared_elsewhere ? epochs_.on_declared_elsewhere(context_.now, event.error)
                               : epochs_.on_ended(context_.now, event.error)
  );
}

void Job::perform(EpochRefused& event) { perform(epochs_.on_refused(context_.now, event.error)); }

void Job::perform(AttemptRefused& event) {
  if (!machine_ || !active_ || event.word < word()) {
    return;
  }
  active_->refused = std::move(event);
  fail_if_refused();
}

/// Every node decides by the same sums, and by rules of its own that are equal.
void Job::perform(SumsKnown& event) {
  PeerDecision& decision = event.decision;
  if (!machine_ || !machine_->asking() || decision.word != word()) {
    return;
  }
  if (const auto misfit =
          active_->comparison ? misfit_of(*active_->plan, *active_->comparison, decision) : std::nullopt) {
    run(machine_->fail_here(make_error(
        ErrorCode::InternalError, "the coordinator's decision " + *misfit, "install one release on all nodes"
    )));
    return;
  }
  recorder_.on_decided(decision.word, context_.now);
  device::StepMath math;
  if (decision.cells) {
    std::vector<plan::ClipRule> rules;
    policies_.rules(attempt_.terms, rules);
    math = decide(active_->plan->options.norm_type, *decision.cells, decision.findings, rules, attempt_.terms.scale);
    for (const device::Finished& raw : attempt_.raw) {
      math.norm_s = std::max(math.norm_s, raw.math.norm_s);
    }
  }
  active_->sums = decision.sums_differ ? device::HashSums::Out : active_->sums;
  run(machine_->on_agreed(std::move(math)));
}

void Job::perform(WantRows& event) {
  const bool compares = active_ && active_->comparison && !active_->comparison->classes.empty();
  if (machine_ && compares && event.compare.word == word()) {
    std::vector<device::ReadRows> by_lane;
    for (const LaneShare& share : active_->shares) {
      by_lane.push_back(rows_wanted_of(*active_->comparison, share.site, event.compare));
    }
    run(machine_->on_rows_wanted(std::move(by_lane)));
  }
}

void Job::perform(WhoIsMissing& event) {
  if (machine_ && event.word == word()) {
    perform(peers_->tell(LocalsMissing{{word(), machine_->missing_ranks(), {}, machine_->waits_for()}}));
  }
}

void Job::perform(PeersHalfTime& event) {
  HalfTime warning{std::move(event.waits_for)};
  perform(warning);
}

void Job::perform(PeersPaused& event) {
  if (machine_) {
    machine_->on_peers_paused(event.paused);
    follow_pauses();
  }
}

void Job::perform(VerdictReached& event) {
  if (machine_ && machine_->voting() && event.word == word()) {
    const std::optional<Error> in_doubt = event.verdict == Verdict::Unknown ? event.error : std::nullopt;
    run(machine_->on_verdict(std::move(event.error)));
    if (in_doubt) {
      perform(epochs_.on_refused(context_.now, *in_doubt));
    }
    return;
  }
  const VerdictReached& ruling = ruling_.emplace(std::move(event));
  for (auto& [number, rank] : ranks_) {
    apply_ruling(rank);
  }
  if (ruling.verdict == Verdict::Unknown) {
    perform(epochs_.on_refused(context_.now, *ruling.error));
  }
}

RecordWords Job::words_of_ranks() const {
  RecordWords words;
  for (const auto& [number, rank] : ranks_) {
    words.known = words.known || rank.comes_back;
    if (rank.last_done) {
      words.done = std::max(words.done, attempt_word(*rank.last_done));
    }
    if (rank.doubt && ruling_on(rank.doubt) == nullptr) {
      words.doubt = std::max(words.doubt, attempt_word(*rank.doubt));
    }
  }
  return words;
}

void Job::apply_ruling(Rank& rank) const {
  if (const VerdictReached* ruling = ruling_on(rank.doubt); ruling != nullptr && ruling->verdict == Verdict::Done) {
    rank.last_done = rank.doubt;
  }
}

const VerdictReached* Job::ruling_on(const std::optional<StepKey>& doubt) const {
  return doubt && ruling_ && ruling_->word == attempt_word(*doubt) ? &*ruling_ : nullptr;
}

}  // namespace gradsync::engine
