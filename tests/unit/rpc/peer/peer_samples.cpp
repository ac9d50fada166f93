#include "peer_samples.hpp"

#include <cmath>
#include <limits>

namespace gradsync::rpc {

namespace {

using engine::Ask;
using engine::NodeCells;
using engine::NodeDeclared;
using engine::NodeFindings;
using engine::PeerAbort;
using engine::PeerAsk;
using engine::PeerBeat;
using engine::PeerBegin;
using engine::PeerCompare;
using engine::PeerConnect;
using engine::PeerConnected;
using engine::PeerDecision;
using engine::PeerDeclaration;
using engine::PeerDone;
using engine::PeerEnd;
using engine::PeerFail;
using engine::PeerHello;
using engine::PeerJoin;
using engine::PeerLeave;
using engine::PeerMissing;
using engine::PeerOverdue;
using engine::PeerPause;
using engine::PeerPolicies;
using engine::PeerPrepare;
using engine::PeerReady;
using engine::PeerRefused;
using engine::PeerRows;
using engine::PeerRuling;
using engine::PeerVote;
using engine::PeerWant;
using engine::PeerWho;
using engine::ToCoordinator;
using engine::ToMember;
using engine::Verdict;

constexpr std::uint64_t kWord = (std::uint64_t{7} << 32) + 5;  // epoch 7, attempt 4
constexpr const char* kHash = "0123456789abcdef0123456789abcdef";
constexpr const char* kOtherHash = "fedcba9876543210fedcba9876543210";

PeerJoin first_join() {
  PeerJoin join;
  join.challenge = 3;
  join.count = 1;
  join.job = {1000, "llm"};
  join.restart_count = 2;
  join.world_size = 6;
  join.meshes = {{"world", {{"dp", 3}, {"tp", 2}}, {"tp", "dp"}}};
  join.node = "node-b";
  join.node_id = kHash;
  join.incarnation = "00000000deadbeef";
  join.address = "10.0.0.2";
  join.ranks = {2, 3};
  join.local_world_size = 4;
  join.port = 9478;
  return join;
}

PeerJoin declared_join() {
  PeerJoin join = first_join();
  join.count = 2;
  join.listen = "10.0.0.3";
  join.epoch = 7;
  join.ranks = {2, 3, 4, 5};
  join.words = {kWord, kWord - 1, true};
  join.declared = NodeDeclared{
      {{kHash, {{2, 1}, {4, 2}}, 1}, {kOtherHash, {{3, 1}}, std::nullopt}},
      {{"f0", ""}, {"f1"}},
      {1U << 20, 25U << 20, 100, 1U << 20, "nccl"},
      {0, 1, 1, 0}};
  return join;
}

device::NcclUniqueId some_id() {
  device::NcclUniqueId id;
  for (std::size_t at = 0; at < id.bytes.size(); ++at) {
    id.bytes[at] = static_cast<char>(2 * at + 1);
  }
  return id;
}

Error full_error() {
  Error error = make_error(
      ErrorCode::RankLost, R"(rank 3 of node "node-b" is lost: größe \ 模型)", "restart it, then declare again"
  );
  error.path = "ranks[1]";
  error.job = "llm";
  error.tensor = "wq";
  error.node = "node-b";
  error.ranks = {3, 2};
  error.tensors = {"wq", "wk"};
  error.rank = 3;
  error.step = -1;
  error.bucket = 4;
  error.epoch = 8;
  error.attempt = 0;
  error.waited_s = 1.5;
  return error;
}

device::TensorSum sum_of(double high, std::uint64_t nonfinite = 0, std::uint64_t nan = 0) {
  return {{high, high / 0x1p60}, 0.5, 0.25, nonfinite, nan};
}

NodeCells some_cells() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {
      {{kInfinity, -0.0}, 1, std::nan(""), 2, 1},
      {sum_of(1.5), sum_of(0x1p-1074)},
      {sum_of(3), sum_of(-0.0), sum_of(1e300, 7, 5)},
      (std::uint64_t{1} << 53) + 1};
}

NodeFindings some_findings() {
  return {
      {{7, 3, {{2, 1}, {3, 2}}}},
      {{1, {3, 2}, {}, {2, 3}}, {9, {4}, {2, 3}, {4}}},
      {{11, {2, 5}}},
      3,
      {{0, 2}, {5, 1}}};
}

PeerAsk finish_ask() {
  PeerAsk ask;
  ask.word = kWord;
  ask.terms.step = 120;
  ask.terms.scale = 65536;
  ask.terms.scaled = true;
  ask.terms.override_max_norm = true;
  ask.terms.max_norm = 0.1;
  ask.policy_digest = "00000000000000a1";
  ask.sites = {{some_cells(), some_findings(), {0, 0xFFFF'FFFF'FFFF'FFFF}}, {some_cells(), {}, {}}};
  return ask;
}

PeerAsk import_ask() {
  PeerAsk ask;
  ask.word = kWord;
  ask.terms.kind = Ask::Kind::Import;
  ask.terms.step = -1;
  ask.terms.state_digest = "00000000000000b2";
  ask.policy_digest = "00000000000000a1";
  return ask;
}

plan::DeclareOptions some_options() {
  plan::DeclareOptions options;
  options.data_path = plan::DataPath::Stats;
  options.accumulate = 4;
  options.norm_type = std::numeric_limits<double>::infinity();
  options.mode = plan::ClipMode::Torch;
  options.clip.resize(2);
  options.clip[0].group = "all";
  options.clip[0].clip.max_norm = 1.0;
  options.clip[0].clip.policy = plan::PercentilePolicy{99, 200, 20};
  options.clip[0].clip.watch = {plan::ZScorePolicy{3, 0.9, 10}, plan::ObservePolicy{}};
  options.clip[1].group = "experts";
  options.clip[1].clip.zero_rule = plan::ZeroRule::Off;
  options.clip[1].clip.nonfinite = plan::NonfiniteAction::Skip;
  options.buckets = plan::BucketRule::Torch;
  options.fingerprint = "xor64";
  options.partial_sums = plan::PartialSums::BFloat16;
  return options;
}

std::vector<plan::TensorDeclaration> some_tensors() {
  plan::TensorDeclaration sharded;
  sharded.name = "layers.0.wq";
  sharded.shape = {4096, 4096};
  sharded.local_shape = {1024, 4096};
  sharded.local_offset = {{2048, 0}};
  sharded.dtype = plan::DType::BFloat16;
  sharded.mesh = "world";
  sharded.placements = {
      {{"tp"}, plan::Shard{0}},
      {{"dp"}, plan::Partial{plan::ReduceOp::Mean, plan::Shard{1}}},
      {{"pp"}, plan::Only{{0, 1}}},
      {{"cp", "ep"}, plan::Replicate{}}};
  sharded.divisor = 3;
  sharded.tied = "embedding";
  sharded.clip_group = "experts";
  sharded.layer = "0";
  sharded.split_order = {"tp", "dp"};
  plan::TensorDeclaration plain;
  plain.name = "bias";
  plain.shape = {8};
  plain.local_shape = {8};
  plain.mesh = "world";
  return {sharded, plain};
}

template <typename Direction>
void add_both_ways(std::vector<Direction>& samples) {
  samples.emplace_back(PeerWant{{kHash, kOtherHash}});
  samples.emplace_back(PeerPolicies{7, 0, 1, {}});
  samples.emplace_back(PeerPolicies{7, 2, 3, std::string("\x00\x7f\xff", 3)});
  samples.emplace_back(PeerDeclaration{kHash, 1, 2, some_options(), some_tensors()});
  samples.emplace_back(PeerPause{{2, 3, 5}});
  samples.emplace_back(PeerPause{});
  samples.emplace_back(PeerBeat{});
}

}  // namespace

std::vector<ToCoordinator> samples_to_coordinator() {
  PeerRows rows;
  rows.word = kWord;
  rows.site = 1;
  rows.rows = {{7, 0, 2, {kWord, 1.5, 0x1p-54, 1, 0.75, 0, 0, 0xFEED}}, {7, 1, 3, {}}};
  PeerAsk clip = finish_ask();
  clip.terms = {};
  clip.terms.kind = Ask::Kind::Clip;
  clip.terms.abandon = true;
  clip.sites.clear();
  std::vector<ToCoordinator> samples{
      first_join(),
      declared_join(),
      PeerReady{7, "00000000000000d1", "00000000000000a1", true},
      PeerReady{
          7,
          "00000000000000d1",
          "00000000000000a1",
          false,
          device::LoadedCommunicators{
              22'809,
              {{"dp_replicate+dp_shard:0123456789abcdef", 3, 0, std::nullopt, some_id()},
               {"ep:00000000000000aa", 2, 1, 0xFEED'0000'0000'0001, std::nullopt}}}},
      PeerConnected{7},
      PeerLeave{7, full_error()},
      finish_ask(),
      clip,
      import_ask(),
      PeerRows{kWord, {1, 2, 0xABCD}, {}},
      rows,
      PeerVote{kWord, "00000000000000e1"},
      PeerFail{kWord, make_error(ErrorCode::StepFailed, "the lane ended")},
      PeerOverdue{kWord, true, 120, 300.5},
      PeerMissing{kWord, {2, 4, 5}, {"wq", "wk"}, "rank 2 is in its backward pass"}};
  add_both_ways(samples);
  return samples;
}

std::vector<ToMember> samples_to_member() {
  PeerPrepare prepare;
  prepare.epoch = 7;
  prepare.coordinator = "00000000cafef00d";
  prepare.roster.own() = {
      {"node-a", "10.0.0.1", "00000000cafef00d", {{kHash, {{0, 2}}, 0}}, 9478},
      {"node-b",
       "10.0.0.2",
       "00000000deadbeef",
       {{kOtherHash, {{3, 1}}, std::nullopt}, {kHash, {{2, 1}, {4, 2}}, 1}},
       65'535,
       {0, 1, 1, 0}}};
  prepare.weight_fingerprints = {{"f0", ""}, {"f1"}};
  prepare.settings = {1U << 20, 25U << 20, 100, 1U << 20};
  std::vector<ToMember> samples{
      PeerHello{3, "00000000cafef00d", "0.3.0", 1, "node-a", "10.0.0.2"},
      PeerRefused{full_error()},
      PeerRuling{kWord, Verdict::Done},
      PeerRuling{kWord, Verdict::Failed},
      PeerRuling{kWord, Verdict::Unknown},
      prepare,
      PeerConnect{7},
      PeerConnect{
          7,
          {{"dp_replicate+dp_shard:0123456789abcdef", 0x0123, some_id()},
           {"ep:00000000000000aa", 0xFEED'0000'0000'0001, std::nullopt}}},
      PeerBegin{7},
      PeerEnd{7, 0, make_error(ErrorCode::NodeLost, "node-c is gone")},
      PeerEnd{7, kWord, full_error()},
      PeerCompare{kWord, {0, 2}, {}},
      PeerCompare{kWord, {}, {{7, 0}, {7, 1}}},
      PeerDecision{kWord, some_cells(), some_findings(), true},
      PeerDecision{kWord, std::nullopt, {}, false},
      PeerDone{kWord},
      PeerAbort{kWord, full_error()},
      PeerWho{kWord}};
  add_both_ways(samples);
  return samples;
}

}  // namespace gradsync::rpc
