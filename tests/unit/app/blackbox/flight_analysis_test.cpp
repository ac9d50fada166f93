// Worlds with a known culprit, or none: the analysis names it, whatever the clocks and the noise.

#include "app/blackbox/flight_analysis.hpp"

#include "app/blackbox/chrome_trace.hpp"
#include "app/blackbox/flight_text.hpp"
#include "unit/app/blackbox/flights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <set>

namespace gradsync::app {
namespace {

using Kind = FlightFinding::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint32_t kSeeds = 60;

/// 1, 2, 3 or 5 nodes of 1 to 4 ranks, so that there are two ranks at least.
FlightPlan plan_for(std::uint32_t seed) {
  FlightPlan plan;
  constexpr std::int64_t kNodes[] = {1, 2, 3, 5};
  plan.nodes = kNodes[seed % 4];
  plan.ranks_of_node = plan.nodes == 1 ? 2 + seed % 3 : 1 + seed % 4;
  plan.buckets = 1 + seed % 6;
  return plan;
}

TEST(FlightAnalysis, says_that_nothing_stands_out_where_nothing_does) {
  for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
    const FlightFinding finding = Flights(plan_for(seed), seed).analyzed();
    EXPECT_EQ(finding.kind, Kind::Nothing) << seed << ": " << finding.sentence;
    EXPECT_THAT(finding.sentence, HasSubstr("Nothing stands out in the last 30 steps"));
  }
}

TEST(FlightAnalysis, names_the_rank_that_the_others_wait_for) {
  for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
    FlightPlan plan = plan_for(seed);
    plan.late_rank = seed % (plan.nodes * plan.ranks_of_node);
    const FlightFinding finding = Flights(plan, seed).analyzed();
    ASSERT_EQ(finding.kind, Kind::LateRank) << seed << ": " << finding.sentence;
    EXPECT_EQ(finding.rank, plan.late_rank) << seed;
    EXPECT_EQ(finding.node, *plan.late_rank / plan.ranks_of_node) << seed;
    EXPECT_THAT(finding.sentence, HasSubstr("Rank " + std::to_string(*plan.late_rank) + " on node "));
    EXPECT_NEAR(*finding.seconds, 30 * 0.060, 30 * 0.006) << seed;
  }
}

TEST(FlightAnalysis, names_no_rank_for_being_a_little_late) {
  for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
    FlightPlan plan = plan_for(seed);
    plan.late_rank = 0;
    plan.late_us = 3'000;
    const FlightFinding finding = Flights(plan, seed).analyzed();
    EXPECT_EQ(finding.kind, Kind::Nothing) << seed << ": " << finding.sentence;
  }
}

TEST(FlightAnalysis, names_the_link_that_carries_less_than_the_others) {
  for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
    FlightPlan plan = plan_for(seed);
    if (plan.nodes == 1) {
      continue;
    }
    plan.slow_way = {seed % plan.nodes, (seed + 1) % plan.nodes};
    const FlightFinding finding = Flights(plan, seed).analyzed();
    ASSERT_EQ(finding.kind, Kind::SlowLink) << seed << ": " << finding.sentence;
    EXPECT_EQ(finding.node, plan.slow_way->first) << seed;
    EXPECT_EQ(finding.peer, plan.slow_way->second) << seed;
  }
}

TEST(FlightAnalysis, names_the_rank_that_a_failed_step_waited_for_and_its_first_bucket) {
  for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
    const FlightPlan plan = plan_for(seed);
    const std::int64_t late = seed % (plan.nodes * plan.ranks_of_node);
    const std::uint32_t bucket = seed % plan.buckets;
    for (const bool fails : {true, false}) {
      Flights flights(plan, seed);
      flights.stuck_step({late}, bucket, {}, fails);
      const FlightFinding finding = flights.analyzed();
      ASSERT_EQ(finding.kind, Kind::LateRank) << seed << ": " << finding.sentence;
      EXPECT_EQ(finding.rank, late) << seed;
      EXPECT_EQ(finding.node, late / plan.ranks_of_node) << seed;
      EXPECT_EQ(finding.bucket, bucket) << seed;
      EXPECT_EQ(finding.attempt, AttemptKey(Flights::kEpoch, 30)) << seed;
      EXPECT_NEAR(*finding.seconds, 599.9, 0.1);
    }
  }
}

TEST(FlightAnalysis, expects_of_a_bucket_the_ranks_that_have_a_part_of_it) {
  FlightPlan plan;
  plan.ranks_of_node = 3;
  Flights flights(plan, 1);
  flights.stuck_step({4}, 2, {}, true);
  for (NamedDump& dump : flights.dumps) {
    for (rpc::DumpBucket& bucket : dump.dump.buckets) {
      bucket.ready -= bucket.bucket == 0 ? 1 : 0;  // the first layers are on two ranks
    }
  }
  EXPECT_EQ(flights.analyzed().bucket, 2U);
}

TEST(FlightAnalysis, names_all_ranks_that_a_step_waited_for) {
  FlightPlan plan;
  Flights flights(plan, 1);
  flights.stuck_step({1, 4}, 2, {}, true);
  EXPECT_THAT(
      flights.analyzed().sentence, HasSubstr("Ranks 1, 4 held up step 30 (epoch 11, attempt 30): they had not")
  );
}

TEST(FlightAnalysis, names_the_node_whose_lane_did_not_end_a_bucket_and_the_link_where_it_is_two) {
  for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
    FlightPlan plan = plan_for(seed);
    plan.nodes = 4;
    const std::uint32_t bucket = seed % plan.buckets;
    const std::int64_t node = seed % 4;
    Flights alone(plan, seed);
    alone.stuck_step({}, bucket, {node}, seed % 2 == 0);
    const FlightFinding of_node = alone.analyzed();
    ASSERT_EQ(of_node.kind, Kind::SlowNode) << seed << ": " << of_node.sentence;
    EXPECT_EQ(of_node.node, node);
    EXPECT_EQ(of_node.bucket, bucket);
    Flights pair(plan, seed);
    pair.stuck_step({}, bucket, {node, (node + 1) % 4}, seed % 2 == 0);
    const FlightFinding of_link = pair.analyzed();
    ASSERT_EQ(of_link.kind, Kind::SlowLink) << seed << ": " << of_link.sentence;
    EXPECT_EQ(std::set<std::int64_t>({*of_link.node, *of_link.peer}), std::set<std::int64_t>({node, (node + 1) % 4}));
    EXPECT_EQ(of_link.bucket, bucket);
  }
}

TEST(FlightAnalysis, names_the_node_that_left_no_dump_where_the_others_had_nothing_left_to_do) {
  for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
    FlightPlan plan = plan_for(seed);
    plan.nodes = 3;
    const std::int64_t gone = seed % 3;
    Flights flights(plan, seed);
    flights.stuck_step({}, std::nullopt, {}, seed % 2 == 0);
    flights.dumps.erase(flights.dumps.begin() + gone);
    const FlightFinding finding = flights.analyzed();
    ASSERT_EQ(finding.kind, Kind::MissingNode) << seed << ": " << finding.sentence;
    EXPECT_EQ(finding.node, gone);
    EXPECT_THAT(finding.sentence, HasSubstr("Node " + std::to_string(gone) + " (rank"));
  }
}

TEST(FlightAnalysis, names_the_node_that_heard_of_no_decision) {
  Flights flights(FlightPlan{}, 3);
  flights.stuck_step({}, std::nullopt, {}, false);
  for (NamedDump& dump : flights.dumps) {
    rpc::DumpAttempt& last = dump.dump.attempts.back();
    last.measured_us = *last.last_ask_us + 10;
    if (dump.dump.head.node_number != 2) {
      last.decided_us = *last.last_ask_us + 20;
      last.voted_us = *last.last_ask_us + 30;
    }
  }
  const FlightFinding finding = flights.analyzed();
  EXPECT_EQ(finding.kind, Kind::SlowLink);
  EXPECT_EQ(finding.node, 2);
  EXPECT_EQ(finding.peer, 0);
  EXPECT_THAT(finding.sentence, HasSubstr("Node node-2 had measured step 30"));
}

TEST(FlightAnalysis, names_the_first_bucket_or_step_that_differs_before_anything_else) {
  const std::map<std::string, void (*)(rpc::DumpFile&, std::size_t, std::uint32_t)> faults{
      {"the bytes of bucket",
       [](rpc::DumpFile& dump, std::size_t at, std::uint32_t bucket) { dump.buckets[at * 4 + bucket].bytes += 4; }},
      {"the order of bucket",
       [](rpc::DumpFile& dump, std::size_t at, std::uint32_t bucket) {
         std::swap(dump.buckets[at * 4 + bucket].order, dump.buckets[at * 4 + (bucket + 1) % 4].order);
       }},
      {"the state of bucket",
       [](rpc::DumpFile& dump, std::size_t at, std::uint32_t bucket) {
         dump.buckets[at * 4 + bucket].state = engine::BucketState::Launched;
       }},
      {"the step of attempt",
       [](rpc::DumpFile& dump, std::size_t at, std::uint32_t) { dump.attempts[at].step = 1000; }},
      {"what became of attempt",
       [](rpc::DumpFile& dump, std::size_t at, std::uint32_t) {
         dump.attempts[at].state = engine::AttemptState::Failed;
       }},
      {"the buckets of attempt",
       [](rpc::DumpFile& dump, std::size_t at, std::uint32_t) { --dump.attempts[at].launched; }}};
  for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
    for (const auto& [what, plant] : faults) {
      FlightPlan plan;
      plan.late_rank = 1;
      Flights flights(plan, seed);
      const std::size_t node = 1 + seed % 2;
      const std::size_t step = seed % 20;
      plant(flights.dumps[node].dump, step, seed % 4);
      plant(flights.dumps[node].dump, step + 5, 0);  // a later one is not named
      const FlightFinding finding = flights.analyzed();
      ASSERT_EQ(finding.kind, Kind::Differs) << seed << ": " << finding.sentence;
      EXPECT_EQ(finding.attempt, AttemptKey(Flights::kEpoch, step)) << what;
      EXPECT_EQ(finding.node, static_cast<std::int64_t>(node)) << what;
      EXPECT_THAT(finding.sentence, HasSubstr("Nodes node-0 and node-" + std::to_string(node) + " differ in " + what));
      if (what == "the bytes of bucket" || what == "the state of bucket") {
        EXPECT_EQ(finding.bucket, seed % 4) << what;
      }
    }
  }
}

TEST(FlightAnalysis, compares_plans_and_world_sizes) {
  Flights flights(FlightPlan{}, 1);
  flights.dumps[2].dump.head.plan = "d2";
  EXPECT_THAT(flights.analyzed().sentence, HasSubstr("differ in the plan of epoch 11: d1 on node-0, d2 on node-2"));
  flights.dumps[1].dump.head.world_size = 7;
  EXPECT_THAT(flights.analyzed().sentence, HasSubstr("differ in world_size: 6 on node-0, 7 on node-1"));
}

TEST(FlightAnalysis, names_what_was_lost) {
  Flights flights(FlightPlan{}, 1);
  flights.stuck_step({}, std::nullopt, {}, true);
  for (NamedDump& dump : flights.dumps) {
    rpc::DumpAttempt& last = dump.dump.attempts.back();
    last.error = "rank_lost";
    last.missing = {3};
    dump.dump.head.cause = rpc::DumpCause{"rank_lost", "rank 3 of job 'llm' died: process 7 ended", {3}, ""};
  }
  FlightFinding finding = flights.analyzed();
  EXPECT_EQ(finding.kind, Kind::LostRank);
  EXPECT_EQ(finding.rank, 3);
  EXPECT_THAT(
      finding.sentence, HasSubstr("Rank 3 was lost in step 30 (epoch 11, attempt 30): rank 3 of job 'llm' died")
  );
  Flights between(FlightPlan{}, 1);
  between.dumps[1].dump.head.cause = rpc::DumpCause{"node_lost", "node 'node-2' is gone", {}, "node-2"};
  finding = between.analyzed();
  EXPECT_EQ(finding.kind, Kind::MissingNode);
  EXPECT_THAT(finding.sentence, HasSubstr("between two steps with node_lost: node 'node-2' is gone"));
}

TEST(FlightAnalysis, says_why_a_step_failed_where_nobody_is_to_blame) {
  Flights flights(FlightPlan{}, 1);
  flights.stuck_step({}, std::nullopt, {}, true);
  for (NamedDump& dump : flights.dumps) {
    dump.dump.attempts.back().error = "step_mismatch";
    dump.dump.head.cause = rpc::DumpCause{"step_mismatch", "rank 0 asks for step 30, rank 1 for step 31", {}, ""};
  }
  const FlightFinding finding = flights.analyzed();
  EXPECT_EQ(finding.kind, Kind::Failure);
  EXPECT_THAT(finding.sentence, HasSubstr("Step 30 (epoch 11, attempt 30) failed with step_mismatch: rank 0 asks"));
}

TEST(FlightWorld, takes_the_newest_dump_of_each_node_and_the_last_restart) {
  Flights flights(FlightPlan{}, 1);
  NamedDump older = flights.dumps[1];
  older.file = "older.jsonl";
  --older.dump.head.taken_unix_us;
  older.dump.attempts.clear();
  NamedDump before = flights.dumps[2];
  before.file = "before.jsonl";
  before.dump.head.taken_unix_us += 1000;
  for (NamedDump& dump : flights.dumps) {
    dump.dump.head.restart_count = 1;
  }
  older.dump.head.restart_count = 1;
  flights.dumps.insert(flights.dumps.begin(), older);
  flights.dumps.push_back(before);
  const Result<FlightWorld> world = make_world(flights.dumps, "");
  ASSERT_TRUE(world) << world.error().message;
  EXPECT_EQ(world->views.size(), 3U);
  EXPECT_THAT(world->left_out, ::testing::UnorderedElementsAre("older.jsonl", "before.jsonl"));
  EXPECT_EQ(world->attempts().size(), 30U);
  EXPECT_TRUE(world->absent().empty());
}

TEST(FlightWorld, refuses_files_that_do_not_belong_together) {
  Flights flights(FlightPlan{}, 1);
  flights.dumps[1].dump.head.job = "other";
  Result<FlightWorld> world = make_world(flights.dumps, "");
  ASSERT_TRUE(world.has_error());
  EXPECT_EQ(world.error().path, "job");
  EXPECT_THAT(world.error().message, HasSubstr("the files are of 2 jobs: llm, other"));
  world = make_world(flights.dumps, "nobody");
  ASSERT_TRUE(world.has_error());
  EXPECT_THAT(world.error().message, HasSubstr("no file is of job 'nobody'"));
  ASSERT_TRUE(make_world(flights.dumps, "other"));
  flights.dumps[1].dump.head.job = "llm";
  flights.dumps[1].dump.head.node_number = 2;
  world = make_world(flights.dumps, "");
  ASSERT_TRUE(world.has_error());
  EXPECT_EQ(world.error().path, "node-2.jsonl");
  EXPECT_THAT(world.error().message, HasSubstr("nodes 'node-1' and 'node-2' are both node 2"));
}

TEST(FlightText, has_the_sentence_first_and_a_line_for_each_node) {
  FlightPlan plan;
  plan.late_rank = 5;
  Flights flights(plan, 4);
  flights.dumps.pop_back();
  flights.dumps.push_back(Flights(plan, 4).dumps.back());
  const Result<FlightWorld> world = make_world(flights.dumps, "");
  const FlightFinding finding = analyze_flight(*world);
  const std::string text = flight_text(*world, finding);
  EXPECT_EQ(text.substr(0, text.find('\n')), finding.sentence);
  EXPECT_EQ(std::ranges::count(text, '\n'), 2 + 1 + 10 * 3);
  const nlohmann::json json = nlohmann::json::parse(flight_json(*world, finding));
  EXPECT_EQ(json["finding"], "late_rank");
  EXPECT_EQ(json["rank"], 5);
  EXPECT_EQ(json["node"], "node-2");
  EXPECT_EQ(json["sentence"], finding.sentence);
  EXPECT_EQ(json["attempts"].size(), 30U);
  EXPECT_EQ(json["attempts"][0]["step"], 20);
}

/// The steps that all nodes take together lie above each other, whatever their clocks say.
TEST(ChromeTrace, brings_the_clocks_of_nodes_together) {
  FlightPlan plan;
  const Flights flights(plan, 9);
  const Result<FlightWorld> world = make_world(flights.dumps, "");
  const nlohmann::json trace = nlohmann::json::parse(chrome_trace(*world));
  std::map<std::string, std::vector<std::int64_t>> begins;
  std::map<std::int64_t, std::string> names;
  std::map<std::pair<std::string, std::string>, int> open;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") {
      begins[event["name"]].push_back(event["ts"]);
      EXPECT_GE(event["dur"], 0);
    } else if (event["name"] == "process_name") {
      names[event["pid"]] = event["args"]["name"];
    } else if (event["ph"] == "b" || event["ph"] == "e") {
      open[{event["cat"], event["id2"]["local"]}] += event["ph"] == "b" ? 1 : -1;
    }
    EXPECT_TRUE(event["ph"] == "M" || event["ts"] >= 0);
  }
  EXPECT_EQ(names.at(3), "node-2");
  ASSERT_EQ(begins.size(), 30U);
  for (const auto& [name, times] : begins) {
    ASSERT_EQ(times.size(), 3U) << name;
    EXPECT_LE(*std::ranges::max_element(times) - *std::ranges::min_element(times), 400) << name;
  }
  for (const auto& [id, count] : open) {
    EXPECT_EQ(count, 0) << id.second;
  }
  EXPECT_EQ(open.size(), 2U * 3 * 30 * 4 + 3U * 2 * 30 * 4);
}

TEST(ChromeTrace, has_wall_clocks_where_no_decision_is_known) {
  FlightPlan plan;
  Flights flights(plan, 9);
  for (NamedDump& dump : flights.dumps) {
    for (rpc::DumpAttempt& attempt : dump.dump.attempts) {
      attempt.decided_us.reset();
    }
  }
  const Result<FlightWorld> world = make_world(flights.dumps, "");
  const std::int64_t first = world->views[0].attempts.begin()->second->begun_us;
  const FlightView& other = world->views[1];
  EXPECT_EQ(other.attempts.begin()->second->begun_us + shift_us(*world, other), first);
}

}  // namespace
}  // namespace gradsync::app
