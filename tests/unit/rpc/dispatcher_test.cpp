#include "rpc/dispatcher.hpp"

#include "base/text/text.hpp"
#include "fakes/recording_lane.hpp"
#include "plan/check/words.hpp"
#include "rpc/handlers/method.hpp"
#include "rpc_harness.hpp"

#include <fmt/format.h>
#include <prometheus/text_serializer.h>

namespace gradsync::rpc {
namespace {

using Harness = RpcHarness<fakes::RecordingLane>;

std::string kind_of_reply(const Json& reply) { return reply["error"]["data"]["kind"]; }

/// Two ranks that have declared; connections 1 and 2.
struct Pair : Harness {
  explicit Pair(RpcLimits limits = {}) : Harness(limits) {
    start_rank(1, 0, 2);
    start_rank(2, 1, 2);
    for (const ConnectionId connection : {1, 2}) {
      const Json declared = Json::parse(outbox.take(connection));
      EXPECT_TRUE(declared.contains("result")) << declared;
      epoch = declared["result"]["epoch"];
    }
  }

  Json finish(int step, int attempt = 0) const {
    return {{"epoch", epoch}, {"attempt", attempt}, {"step", step}, {"ready", "all"}};
  }

  int epoch = 0;
};

TEST(Dispatcher, asks_for_initialize_then_attach) {
  Harness rpc;
  rpc.open(1);
  EXPECT_EQ(kind_of_reply(rpc.attach(1, 0, 1)), "not_initialized");
  EXPECT_TRUE(rpc.initialize(1).contains("result"));
  EXPECT_EQ(kind_of_reply(rpc.call(1, "job.detach", Json::object())), "not_attached");
  EXPECT_TRUE(rpc.attach(1, 0, 1).contains("result"));
  EXPECT_EQ(kind_of_reply(rpc.initialize(1)), "invalid_request");
}

TEST(Dispatcher, tells_the_operators_limits_and_deadlines) {
  RpcLimits limits;
  limits.engine.tensors = 77;
  limits.deadlines.declare = Milliseconds(1'500);
  limits.deadlines.first_step = Milliseconds(7'200'000);
  limits.deadlines.step = Milliseconds(90'000);
  Harness rpc(limits);
  rpc.open(1);
  const Json told = rpc.initialize(1)["result"]["limits"];
  EXPECT_EQ(told["tensors"], 77);
  EXPECT_EQ(told["declare_s"], 1.5);
  EXPECT_EQ(told["first_step_s"], 7200);
  EXPECT_EQ(told["step_s"], 90);
}

TEST(Dispatcher, tells_which_placements_each_data_path_takes) {
  Harness rpc;
  rpc.open(1);
  const Json told = rpc.initialize(1)["result"]["capabilities"]["placements"];
  const std::map<std::string, plan::PlacementKind> kinds{
      {"replicate", plan::Replicate{}},
      {"shard", plan::Shard{0}},
      {"only", plan::Only{{0}}},
      {"partial_to_replicate", plan::Partial{plan::ReduceOp::Sum, std::nullopt}},
      {"partial_to_shard", plan::Partial{plan::ReduceOp::Sum, plan::Shard{0}}},
  };
  const std::vector<plan::Mesh> meshes{{"m", {{"dp", 2}}, {}}};
  for (const plan::DataPath path : {plan::DataPath::Arena, plan::DataPath::Stats}) {
    const Json& listed = told[std::string(plan::name_of(path))];
    for (const auto& [name, kind] : kinds) {
      plan::RankDeclaration declaration;
      declaration.options.data_path = path;
      plan::TensorDeclaration& tensor = declaration.tensors.own().emplace_back();
      tensor.name = "w";
      tensor.shape = {4};
      tensor.local_shape = {std::holds_alternative<plan::Shard>(kind) ? 2 : 4};
      tensor.mesh = "m";
      tensor.placements = {{{"dp"}, kind}};
      const bool taken = plan::validate_declaration(declaration, meshes).has_value();
      EXPECT_EQ(taken, std::count(listed.begin(), listed.end(), name) == 1) << plan::name_of(path) << ": " << name;
    }
  }
}

TEST(Dispatcher, answers_a_batch_once_its_last_waiting_call_is_done) {
  Pair rpc;
  rpc.send(
      1,
      Json{
          {{"jsonrpc", "2.0"}, {"id", "f"}, {"method", "step.finish"}, {"params", rpc.finish(0)}},
          {{"jsonrpc", "2.0"}, {"method", "status.get"}},
          {{"jsonrpc", "2.0"}, {"id", "s"}, {"method", "status.get"}}}
          .dump()
  );
  EXPECT_EQ(rpc.outbox.take(1), "");
  rpc.request(2, "step.finish", rpc.finish(0));
  const Json replies = Json::parse(rpc.outbox.take(1));
  ASSERT_EQ(replies.size(), 2U);
  EXPECT_EQ(replies[0]["id"], "f");
  EXPECT_EQ(replies[0]["result"]["next_attempt"], 1);
  EXPECT_EQ(replies[1]["id"], "s");
}

// Notifications need no room, so they are taken all the same.
TEST(Dispatcher, calls_nothing_more_of_a_batch_whose_replies_fill_a_message) {
  RpcLimits limits;
  limits.message_bytes = 16384;
  Pair rpc(limits);
  const auto calls = [&rpc] {
    const std::string text = prometheus::TextSerializer().Serialize(rpc.registry.Collect());
    const std::size_t at = text.find("method=\"status.get\",outcome=\"ok\"");
    return at == std::string::npos ? 0 : std::stoi(text.substr(text.find("} ", at) + 2));
  };
  Json batch = Json::array();
  for (int i = 0; i < 64; ++i) {
    batch.push_back({{"jsonrpc", "2.0"}, {"id", "s" + std::to_string(i)}, {"method", "status.get"}});
  }
  const int before = calls();
  rpc.send(1, batch.dump());
  const Json replies = Json::parse(rpc.outbox.take(1));
  ASSERT_EQ(replies.size(), 64U);
  EXPECT_TRUE(replies[0].contains("result"));
  EXPECT_EQ(kind_of_reply(replies[63]), "limit_exceeded");
  EXPECT_EQ(replies[63]["id"], "s63");
  EXPECT_LT(calls() - before, 48) << "each reply has some hundred bytes";
}

TEST(Dispatcher, does_not_make_answers_that_nobody_reads) {
  Pair rpc;
  const auto called = [&](const char* method) {
    return rpc.dispatcher->on_text(1, Json{{"jsonrpc", "2.0"}, {"method", method}}.dump());
  };
  for (const char* method : {"stats.get", "status.get", "plan.explain", "policy.export", "rpc.discover"}) {
    EXPECT_FALSE(called(method)) << method;
  }
  EXPECT_TRUE(called("job.detach")) << "it does something";
}

TEST(Dispatcher, leaves_the_rest_of_a_batch_to_a_later_turn) {
  Pair rpc;
  Json batch = Json::array();
  for (int i = 0; i < 3; ++i) {
    batch.push_back({{"jsonrpc", "2.0"}, {"id", i + 100}, {"method", "status.get"}});
  }
  batch.push_back({{"jsonrpc", "2.0"}, {"id", "d"}, {"method", "job.detach"}});
  rpc.every_look = Milliseconds(1);
  EXPECT_TRUE(rpc.dispatcher->on_text(1, batch.dump()));
  int turns = 0;
  while (rpc.dispatcher->has_more(1)) {
    EXPECT_EQ(rpc.outbox.take(1), "") << "it is answered as a whole";
    rpc.dispatcher->go_on(1);
    ++turns;
  }
  EXPECT_EQ(turns, 3);
  const Json replies = Json::parse(rpc.outbox.take(1));
  ASSERT_EQ(replies.size(), 4U);
  EXPECT_EQ(replies[0]["id"], 100);
  EXPECT_TRUE(replies[3].contains("result"));
  EXPECT_FALSE(rpc.dispatcher->has_more(2));
}

TEST(Dispatcher, forgets_the_rest_of_a_batch_whose_connection_is_gone) {
  Pair rpc;
  rpc.every_look = Milliseconds(1);
  static_cast<void>(rpc.dispatcher->on_text(
      1, R"([{"jsonrpc":"2.0","id":"a","method":"status.get"},{"jsonrpc":"2.0","id":"b","method":"status.get"}])"
  ));
  ASSERT_TRUE(rpc.dispatcher->has_more(1));
  rpc.dispatcher->on_close(1);
  EXPECT_FALSE(rpc.dispatcher->has_more(1));
  rpc.dispatcher->go_on(1);
  EXPECT_EQ(rpc.outbox.take(1), "");
}

TEST(Dispatcher, carries_a_posted_batch_out_in_turns) {
  Pair rpc;
  rpc.every_look = Milliseconds(1);
  const std::unique_ptr<PostCall> call = rpc.dispatcher->begin_post(
      Pair::local_peer(),
      R"([{"jsonrpc":"2.0","id":"a","method":"status.get"},{"jsonrpc":"2.0","id":"b","method":"status.get"}])"
  );
  EXPECT_FALSE(call->go_on());
  EXPECT_EQ(call->reply.body, "");
  EXPECT_TRUE(call->go_on());
  EXPECT_EQ(Json::parse(call->reply.body).size(), 2U);
}

struct WaitingBatches : Harness {
  static RpcLimits large_messages() {
    RpcLimits limits;
    limits.message_bytes = 8U << 20;
    return limits;
  }

  WaitingBatches() : Harness(large_messages()) { every_look = Milliseconds(1); }

  /// A batch of 5 MiB whose second call waits for its turn; the id of its connection.
  ConnectionId leave_waiting(std::uint32_t uid, std::int64_t pid) {
    const ConnectionId id = ++last;
    open(id, {true, false, uid, pid});
    static_cast<void>(dispatcher->on_text(id, batch));
    EXPECT_TRUE(dispatcher->has_more(id));
    return id;
  }

  void leave_waiting(std::uint32_t uid, std::int64_t pid, int batches) {
    for (int i = 0; i < batches; ++i) {
      leave_waiting(uid, pid);
    }
  }

  /// What the second call of a batch is answered; empty: it was carried out.
  std::string refusal(ConnectionId id) {
    dispatcher->go_on(id);
    const Json replies = Json::parse(outbox.take(id));
    EXPECT_TRUE(replies[0].contains("result")) << "it was called before the batch waited";
    if (replies[1].contains("result")) {
      return "";
    }
    EXPECT_EQ(kind_of_reply(replies[1]), "limit_exceeded");
    return replies[1]["error"]["message"];
  }

  const std::string batch = R"([{"jsonrpc":"2.0","id":"a","method":"status.get"},)"
                            R"({"jsonrpc":"2.0","id":"b","method":"status.get"}])" +
                            std::string((5 << 20) - 128, ' ');
  ConnectionId last = 0;
};

TEST(Dispatcher, refuses_what_is_left_of_batches_where_those_of_a_process_hold_half) {
  WaitingBatches rpc;
  rpc.leave_waiting(1000, 1, 6);
  const ConnectionId refused = rpc.leave_waiting(1000, 1);
  EXPECT_EQ(rpc.refusal(refused), "batches of process 1 that wait for their turn hold 30.0 MiB, the limit is 32.0 MiB");
  EXPECT_EQ(rpc.refusal(1), "") << "the one that waits longest";
  EXPECT_EQ(rpc.refusal(rpc.leave_waiting(1000, 1)), "") << "there is room again";
}

TEST(Dispatcher, refuses_what_is_left_of_batches_where_those_of_a_uid_hold_three_quarters) {
  WaitingBatches rpc;
  rpc.leave_waiting(1000, 1, 6);
  rpc.leave_waiting(1000, 2, 3);
  EXPECT_EQ(
      rpc.refusal(rpc.leave_waiting(1000, 2)),
      "batches of uid 1000 that wait for their turn hold 45.0 MiB, the limit is 48.0 MiB"
  );
  EXPECT_EQ(rpc.refusal(rpc.leave_waiting(1001, 3)), "") << "it leaves room for another uid";
}

TEST(Dispatcher, refuses_what_is_left_of_batches_where_those_of_all_hold_too_much) {
  WaitingBatches rpc;
  rpc.leave_waiting(1000, 1, 6);
  rpc.leave_waiting(1000, 2, 3);
  rpc.leave_waiting(1001, 3, 3);
  EXPECT_EQ(
      rpc.refusal(rpc.leave_waiting(1002, 4)),
      "batches of the daemon that wait for their turn hold 60.0 MiB, the limit is 64.0 MiB"
  );
  rpc.dispatcher->on_close(1);
  EXPECT_EQ(rpc.refusal(rpc.leave_waiting(1002, 4)), "") << "what a closed connection held is free";
}

TEST(Dispatcher, drops_an_answer_whose_connection_is_gone) {
  Pair rpc;
  rpc.request(1, "step.finish", rpc.finish(0));
  rpc.dispatcher->on_close(1);
  rpc.request(2, "step.finish", rpc.finish(0));
  EXPECT_TRUE(Json::parse(rpc.outbox.take(2)).contains("result"));
  EXPECT_EQ(rpc.outbox.take(1), "");
}

TEST(Dispatcher, a_session_that_moved_to_a_new_connection_does_not_die_with_the_old_one) {
  Harness rpc;
  rpc.open(1);
  rpc.initialize(1);
  rpc.attach(1, 0, 1);
  rpc.open(2);
  rpc.call(
      2,
      "session.initialize",
      {{"protocol", 1},
       {"client", {{"name", "t"}, {"version", "1"}}},
       {"client_id", "client-1"},
       {"pid", 1},
       {"boot_id", ""}}
  );
  EXPECT_EQ(rpc.attach(2, 0, 1)["result"]["resumed"], true);
  rpc.dispatcher->on_close(1);
  rpc.dispatcher->on_process_exit(1);
  rpc.pass(Milliseconds(10'000));
  EXPECT_TRUE(rpc.call(2, "job.pause", {{"paused", false}}).contains("result"));
  EXPECT_EQ(
      kind_of_reply(rpc.call(
          2,
          "job.attach",
          {{"job", "other"},
           {"rank", 0},
           {"world_size", 1},
           {"meshes", {{{"name", "m"}, {"axes", {{{"name", "d"}, {"size", 1}}}}}}}}
      )),
      "rank_in_use"
  );
}

TEST(Dispatcher, a_process_that_ends_fails_the_step_of_the_others_by_name) {
  for (const bool close_first : {true, false}) {
    Pair rpc;
    rpc.request(1, "step.finish", rpc.finish(0));
    if (close_first) {
      rpc.dispatcher->on_close(2);
    }
    rpc.dispatcher->on_process_exit(2);
    rpc.pump();
    const Json reply = Json::parse(rpc.outbox.take(1));
    EXPECT_EQ(kind_of_reply(reply), "rank_lost") << reply;
    if (!close_first) {
      rpc.dispatcher->on_close(2);
    }
  }
}

TEST(Dispatcher, reports_a_lane_failure_to_every_rank) {
  Pair rpc;
  rpc.lane.fail_reductions = true;
  rpc.request(1, "step.finish", rpc.finish(0));
  rpc.request(2, "step.finish", rpc.finish(0));
  for (const ConnectionId connection : {1, 2}) {
    const Json reply = Json::parse(rpc.outbox.take(connection));
    EXPECT_EQ(kind_of_reply(reply), "step_failed") << reply;
    EXPECT_EQ(reply["error"]["data"]["retryable"], true);
  }
}

TEST(Dispatcher, never_answers_notifications) {
  Harness rpc;
  rpc.open(1);
  rpc.send(1, R"({"jsonrpc":"2.0","method":"no.such.method"})");
  rpc.send(1, R"({"jsonrpc":"2.0","method":"job.attach","params":{"bad":1}})");
  rpc.send(1, R"([{"jsonrpc":"2.0","method":"status.get"},{"jsonrpc":"2.0","method":"status.get","params":[]}])");
  EXPECT_EQ(rpc.outbox.take(1), "");
}

// The lane does not come to rest, so the step calls of a rank that leaves wait on; the rank comes back and calls again.
TEST(Dispatcher, refuses_calls_of_a_connection_on_which_very_many_wait) {
  constexpr int kMost = 1024;
  Pair rpc;
  const auto ask = [&](ConnectionId connection, const std::string& method, const Json& params) {
    const Json request{{"jsonrpc", "2.0"}, {"id", ++rpc.last_id}, {"method", method}, {"params", params}};
    static_cast<void>(rpc.dispatcher->on_text(connection, request.dump()));
    const std::string text = rpc.outbox.take(connection);
    return text.empty() ? Json() : Json::parse(text);
  };
  const Json attach{
      {"job", "job"},
      {"rank", 0},
      {"world_size", 2},
      {"meshes", {{{"name", "m"}, {"axes", {{{"name", "dp"}, {"size", 2}}}}}}}};
  ASSERT_TRUE(ask(2, "step.finish", rpc.finish(0)).is_null());
  ASSERT_TRUE(ask(1, "step.finish", rpc.finish(0)).is_null());
  for (int waiting = 1; waiting < kMost; ++waiting) {
    ASSERT_TRUE(ask(1, "job.detach", Json::object()).contains("result"));
    ASSERT_TRUE(ask(1, "job.attach", attach).contains("result"));
    ASSERT_TRUE(ask(1, "step.finish", rpc.finish(0)).is_null());
  }
  const Json refused = ask(1, "status.get", Json::object());
  EXPECT_EQ(refused["id"], rpc.last_id);
  EXPECT_EQ(kind_of_reply(refused), "limit_exceeded");
  EXPECT_EQ(refused["error"]["message"], "1024 calls of this connection wait, and no more may");
  EXPECT_TRUE(ask(2, "status.get", Json::object()).contains("result")) << "another connection";
  rpc.pump();
  int answered = 0;
  while (!rpc.outbox.take(1).empty()) {
    ++answered;
  }
  EXPECT_EQ(answered, kMost);
  EXPECT_TRUE(ask(1, "status.get", Json::object()).contains("result"));
}

TEST(Dispatcher, refuses_a_used_id_with_a_null_id) {
  Pair rpc;
  const std::string finish =
      Json{{"jsonrpc", "2.0"}, {"id", "x"}, {"method", "step.finish"}, {"params", rpc.finish(0)}}.dump();
  rpc.send(1, finish);
  rpc.send(1, finish);
  const Json reply = Json::parse(rpc.outbox.take(1));
  EXPECT_TRUE(reply["id"].is_null());
  EXPECT_EQ(kind_of_reply(reply), "invalid_request");
}

TEST(Dispatcher, offers_only_session_less_methods_to_tcp_and_post) {
  Harness rpc;
  const Peer tcp{false, true, 0, 0};
  rpc.open(1, tcp);
  EXPECT_EQ(kind_of_reply(rpc.initialize(1)), "local_only");
  EXPECT_TRUE(rpc.call(1, "status.get", Json::object()).contains("result"));
  const auto post = [&](const std::string& body) { return rpc.dispatcher->on_post(Harness::local_peer(), body); };
  EXPECT_EQ(post(R"({"jsonrpc":"2.0","id":1,"method":"status.get"})").status, 200);
  EXPECT_EQ(post(R"({"jsonrpc":"2.0","id":1,"method":"job.detach"})").status, 403);
  EXPECT_EQ(post(R"({"jsonrpc":"2.0","id":1,"method":"nope"})").status, 404);
  EXPECT_EQ(post("{").status, 400);
  EXPECT_EQ(post(R"([{"jsonrpc":"2.0","id":1,"method":"nope"}])").status, 200);
  const PostReply silent = post(R"({"jsonrpc":"2.0","method":"status.get"})");
  EXPECT_EQ(silent.status, 204);
  EXPECT_EQ(silent.body, "");
}

TEST(Dispatcher, hides_jobs_of_other_uids) {
  Pair rpc;
  const auto jobs = [&](Peer peer) {
    const PostReply reply = rpc.dispatcher->on_post(peer, R"({"jsonrpc":"2.0","id":1,"method":"status.get"})");
    return Json::parse(reply.body)["result"]["jobs"].size();
  };
  EXPECT_EQ(jobs({true, false, 1000, 1}), 1U);
  EXPECT_EQ(jobs({true, false, 1001, 1}), 0U);
  EXPECT_EQ(jobs({true, true, 0, 1}), 1U);
  EXPECT_EQ(jobs({false, true, 0, 0}), 1U);
  EXPECT_EQ(jobs({false, false, 1000, 0}), 1U);
}

TEST(Dispatcher, shows_readers_all_jobs_and_lets_them_change_nothing) {
  Pair rpc;
  Peer reader;
  reader.reads_only = true;
  const auto post = [&](const char* method) {
    const Json call{{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", Json::object()}};
    return Json::parse(rpc.dispatcher->on_post(reader, call.dump()).body);
  };
  EXPECT_EQ(post("status.get")["result"]["jobs"].size(), 1U);
  for (const Method& method : methods()) {
    const Json reply = post(method.name);
    if (method.needs != Needs::Nothing) {
      EXPECT_EQ(kind_of_reply(reply), "local_only") << method.name;
    } else if (method.form != Form::Read) {
      EXPECT_EQ(kind_of_reply(reply), "unauthorized") << method.name;
    } else if (reply.contains("error")) {
      EXPECT_EQ(kind_of_reply(reply), "invalid_params") << method.name << " needs some";
    }
  }
  EXPECT_EQ(rpc.log_level, "info");
}

TEST(Dispatcher, changes_the_log_level_for_the_privileged_only) {
  Harness rpc;
  rpc.open(1);
  EXPECT_EQ(rpc.call(1, "log.set_level", {{"level", "debug"}})["result"]["previous"], "info");
  rpc.open(2, {true, false, 1001, 1});
  EXPECT_EQ(kind_of_reply(rpc.call(2, "log.set_level", {{"level", "trace"}})), "unauthorized");
  EXPECT_EQ(rpc.log_level, "debug");
}

TEST(Dispatcher, has_flight_recorders_dumped_for_the_privileged_only) {
  Harness rpc;
  rpc.start_rank(1, 0, 1);
  rpc.outbox.sent.clear();
  const Json dumps = rpc.call(1, "blackbox.dump", {{"job", "job"}})["result"]["dumps"];
  EXPECT_EQ(dumps, Json::parse(R"([{"job": "job", "uid": 1000, "file": "/dumps/job.jsonl"}])"));
  EXPECT_TRUE(rpc.call(1, "blackbox.dump", Json::object()).contains("result"));
  rpc.open(2, {true, false, 1001, 1});
  EXPECT_EQ(kind_of_reply(rpc.call(2, "blackbox.dump", Json::object())), "unauthorized");
  rpc.dumps_off = true;
  EXPECT_EQ(kind_of_reply(rpc.call(1, "blackbox.dump", Json::object())), "invalid_request");
}

/// Text of a call that waits for the doctor.
std::string doctor_call(int id) { return Json{{"jsonrpc", "2.0"}, {"id", id}, {"method", "doctor.run"}}.dump(); }

TEST(Dispatcher, answers_other_calls_while_a_doctor_works) {
  Harness rpc;
  rpc.open(1);
  rpc.initialize(1);
  rpc.dispatcher->on_text(1, doctor_call(90));
  rpc.dispatcher->on_text(1, Json{{"jsonrpc", "2.0"}, {"id", 91}, {"method", "status.get"}}.dump());
  EXPECT_EQ(Json::parse(rpc.outbox.take(1))["id"], 91);
  EXPECT_EQ(rpc.outbox.take(1), "");
  rpc.end_examinations();
  const Json reply = Json::parse(rpc.outbox.take(1));
  EXPECT_EQ(reply["id"], 90);
  EXPECT_EQ(reply["result"]["well"], false);
  EXPECT_EQ(rpc.examined_for.at(0).uid, Harness::local_peer().uid);
  EXPECT_EQ(rpc.examined_for.at(0).pid, Harness::local_peer().pid);
}

TEST(Dispatcher, drops_what_a_doctor_found_for_a_caller_that_left) {
  Harness rpc;
  for (const ConnectionId connection : {1, 2}) {
    rpc.open(connection);
    rpc.initialize(connection);
  }
  rpc.dispatcher->on_text(1, doctor_call(90));
  rpc.dispatcher->on_text(2, doctor_call(90));
  rpc.dispatcher->on_close(1);
  rpc.end_examinations();
  EXPECT_EQ(rpc.outbox.take(1), "");
  EXPECT_EQ(Json::parse(rpc.outbox.take(2))["id"], 90);
}

TEST(Dispatcher, refuses_findings_that_are_longer_than_a_message) {
  RpcLimits limits;
  limits.message_bytes = 4096;
  Harness rpc(limits);
  rpc.open(1);
  rpc.initialize(1);
  rpc.examination = DoctorAnswer{{{DoctorFinding::Level::Note, std::string(5000, 'x')}}, true, {}};
  EXPECT_EQ(kind_of_reply(rpc.call(1, "doctor.run", Json::object())), "limit_exceeded");
}

TEST(Dispatcher, takes_a_declaration_in_pages) {
  Harness rpc;
  rpc.open(1);
  rpc.initialize(1);
  rpc.attach(1, 0, 1);
  const Json buffer = rpc.call(1, "buffers.allocate", {{"bytes", 4096}, {"device", "cpu"}})["result"]["buffer"];
  const auto page = [&](int number, bool last, const std::string& name) {
    return rpc.call(
        1,
        "gradients.declare",
        {{"buffer", buffer}, {"page", number}, {"last", last}, {"tensors", {Harness::tensor(name)}}}
    );
  };
  EXPECT_EQ(page(0, false, "a")["result"], Json::parse(R"({"received":1})"));
  EXPECT_EQ(page(2, false, "b")["error"]["data"]["path"], "page");
  EXPECT_EQ(page(1, false, "b")["error"]["data"]["path"], "page") << "an error begins anew";
  EXPECT_EQ(page(0, false, "a")["result"]["received"], 1);
  EXPECT_EQ(page(1, false, "b")["result"]["received"], 2);
  const Json declared = page(2, true, "c");
  EXPECT_EQ(declared["result"]["offsets"].size(), 3U) << declared;
}

TEST(Dispatcher, limits_what_a_process_a_uid_and_all_declare) {
  for (const std::string whose : {"process", "uid", "daemon"}) {
    const bool same_process = whose == "process";
    const std::string named = whose == "process" ? "process 7" : whose == "uid" ? "uid 1000" : "the daemon";
    const std::uint64_t most = whose == "process" ? 4096 : whose == "uid" ? 6144 : 8192;
    RpcLimits limits;
    limits.engine.declared_bytes = 8192;
    Harness rpc(limits);
    const auto page = [&](ConnectionId connection, int number, bool last) {
      const Json params{
          {"buffer", 1},
          {"page", number},
          {"last", last},
          {"tensors", {Harness::tensor(std::string(500, static_cast<char>('a' + number)))}}};
      return rpc.call(connection, "gradients.declare", params);
    };
    for (const ConnectionId connection : {1, 2, 3}) {
      const auto uid = static_cast<std::uint32_t>(whose == "daemon" ? 1000 + connection : 1000);
      rpc.open(connection, {true, true, uid, same_process ? 7 : 7 + static_cast<std::int64_t>(connection)});
      rpc.initialize(connection);
      rpc.attach(connection, static_cast<int>(connection) - 1, 3);
    }
    const FairBudget& budget = rpc.engine.declared_bytes();
    int taken = 0;
    std::uint64_t held = 0;
    std::uint64_t of_one_page = 0;
    Json reply;
    for (ConnectionId connection = 1; !reply.contains("error"); connection = connection % 3 + 1) {
      of_one_page = budget.held() - held;
      held = budget.held();
      reply = page(connection, taken / 3, false);
      ASSERT_LT(++taken, 20) << "nothing is limited";
    }
    EXPECT_EQ(kind_of_reply(reply), "limit_exceeded");
    EXPECT_LE(held, most);
    EXPECT_GT(held + of_one_page, most);
    ASSERT_NE(human_bytes(held), human_bytes(most)) << "the text would say twice the same";
    EXPECT_EQ(
        reply["error"]["message"].get<std::string>(),
        fmt::format(
            "declarations of {} hold {}, this page {} more; at most {}",
            named,
            human_bytes(held),
            human_bytes(of_one_page),
            human_bytes(most)
        )
    );
    for (const ConnectionId connection : {1, 2, 3}) {
      rpc.dispatcher->on_close(connection);
    }
    rpc.open(4, {true, true, 1000, 7});
    rpc.initialize(4);
    ASSERT_TRUE(rpc.call(
                       4,
                       "job.attach",
                       {{"job", "other"},
                        {"rank", 0},
                        {"world_size", 1},
                        {"meshes", {{{"name", "m"}, {"axes", {{{"name", "dp"}, {"size", 1}}}}}}}}
    ).contains("result"));
    EXPECT_TRUE(page(4, 0, false).contains("result")) << "closed connections hold nothing";
  }
}

TEST(Dispatcher, counts_a_declaration_until_its_rank_declares_anew_or_leaves) {
  Harness rpc;
  const FairBudget& budget = rpc.engine.declared_bytes();
  rpc.start_rank(1, 0, 1);
  (void)rpc.outbox.take(1);
  const auto declare = [&](const std::string& name) {
    return rpc.call(1, "gradients.declare", {{"buffer", 1}, {"tensors", {Harness::tensor(name)}}});
  };
  ASSERT_TRUE(declare(std::string(400, 'a')).contains("result"));
  const std::uint64_t held = budget.held();
  EXPECT_GT(held, 400U);
  ASSERT_TRUE(declare(std::string(500, 'a')).contains("result"));
  EXPECT_EQ(budget.held(), held + 200) << "declaration and plan have the name, and those before them are gone";
  EXPECT_EQ(kind_of_reply(declare(std::string(600, 'a'))), "invalid_params");
  EXPECT_EQ(budget.held(), held + 200) << "what is refused holds nothing";
  ASSERT_TRUE(rpc.call(1, "job.detach", Json::object()).contains("result"));
  EXPECT_EQ(budget.held(), 0U);
}

TEST(Dispatcher, counts_tensors_that_ranks_declare_alike_once_until_the_last_of_them_leaves) {
  std::uint64_t alone = 0;
  for (const int world_size : {1, 2}) {
    Harness rpc;
    const FairBudget& budget = rpc.engine.declared_bytes();
    std::vector<Json> tensors;
    for (const char name : {'a', 'b', 'c', 'd'}) {
      tensors.push_back(Harness::tensor(std::string(500, name)));
    }
    for (int rank = 0; rank < world_size; ++rank) {
      rpc.open(rank + 1);
      rpc.initialize(rank + 1);
      rpc.attach(rank + 1, rank, world_size);
      const Json grant = rpc.call(rank + 1, "buffers.allocate", {{"bytes", 4096}, {"device", "cpu"}});
      rpc.request(rank + 1, "gradients.declare", {{"buffer", grant["result"]["buffer"]}, {"tensors", tensors}});
    }
    const std::uint64_t held = budget.held();
    ASSERT_GT(held, 4U * 2 * 500) << "declared, and in the plan";
    alone = world_size == 1 ? held : alone;
    EXPECT_LT(held, alone + 1'000);
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_EQ(budget.held(), held) << "who stays has them still";
      (void)rpc.call(rank + 1, "job.detach", Json::object());
    }
    EXPECT_EQ(budget.held(), 0U);
  }
}

TEST(Dispatcher, refuses_a_plan_for_which_the_memory_is_not_there) {
  RpcLimits limits;
  limits.engine.declared_bytes = 3'000;
  Harness rpc(limits);
  rpc.open(1);
  rpc.start_rank(1, 0, 1);
  const Json reply = Json::parse(rpc.outbox.take(1));
  EXPECT_EQ(kind_of_reply(reply), "limit_exceeded");
  const std::string message = reply["error"]["message"];
  EXPECT_NE(message.find("the plan of job 'job' needs 3"), std::string::npos) << message;
  EXPECT_NE(message.find("at most 2.9 KiB"), std::string::npos) << message;
  EXPECT_LE(rpc.engine.declared_bytes().held(), 1'500U) << "the declaration alone";
}

TEST(Dispatcher, limits_the_tensors_of_a_declaration) {
  RpcLimits limits;
  limits.engine.tensors = 1;
  Harness rpc(limits);
  rpc.start_rank(1, 0, 1);
  EXPECT_EQ(kind_of_reply(Json::parse(rpc.outbox.take(1))), "limit_exceeded");
}

TEST(Dispatcher, refuses_a_message_beyond_the_limit_and_serves_on) {
  RpcLimits limits;
  limits.message_bytes = 16384;
  Harness rpc(limits);
  rpc.open(1);
  rpc.send(1, std::string(20'000, ' '));
  EXPECT_EQ(kind_of_reply(Json::parse(rpc.outbox.take(1))), "limit_exceeded");
  EXPECT_EQ(kind_of_reply(rpc.call(1, "rpc.discover", Json::object())), "limit_exceeded");
  EXPECT_TRUE(rpc.call(1, "status.get", Json::object()).contains("result"));
}

TEST(Dispatcher, tells_what_no_method_was_called_for) {
  Harness harness;
  harness.open(1);
  const auto called = [&](const char* text) { return harness.dispatcher->on_text(1, text); };
  constexpr auto kGood = R"({"jsonrpc": "2.0", "id": 1, "method": "status.get"})";
  constexpr auto kUnknown = R"({"jsonrpc": "2.0", "id": 2, "method": "status.got"})";
  EXPECT_TRUE(called(kGood));
  EXPECT_FALSE(called(kGood)) << "a used id";
  EXPECT_FALSE(called(kUnknown));
  EXPECT_FALSE(called(R"({"jsonrpc": "2.0", "id": 3, "method": "step.finish", "params": {}})")) << "no rank";
  EXPECT_FALSE(called("{"));
  EXPECT_FALSE(called("[]"));
  EXPECT_FALSE(called(R"([{"jsonrpc": "2.0", "id": 4, "method": "status.got"}, 7])"));
  EXPECT_TRUE(called(R"([{"jsonrpc": "2.0", "id": 5, "method": "status.get"}, 7])"));
  EXPECT_FALSE(harness.dispatcher->on_text(2, kGood)) << "a connection that is gone";
}

TEST(Dispatcher, a_batch_whose_replies_are_too_long_together_keeps_those_that_fit) {
  RpcLimits limits;
  limits.message_bytes = 700;
  Harness rpc(limits);
  rpc.open(1);
  Json batch = Json::array();
  for (int i = 0; i < 7; ++i) {
    batch.push_back({{"jsonrpc", "2.0"}, {"id", i}, {"method", "status.get"}});
  }
  rpc.send(1, batch.dump());
  const Json replies = Json::parse(rpc.outbox.take(1));
  ASSERT_EQ(replies.size(), 7U);
  EXPECT_TRUE(replies[0].contains("result"));
  EXPECT_EQ(kind_of_reply(replies[6]), "limit_exceeded");
}

TEST(Dispatcher, repeats_the_recorded_result_to_a_client_that_came_back) {
  Pair rpc;
  rpc.request(1, "step.finish", rpc.finish(0));
  rpc.request(2, "step.finish", rpc.finish(0));
  const Json first = Json::parse(rpc.outbox.take(1))["result"];
  const Json again = rpc.call(1, "step.finish", rpc.finish(0))["result"];
  EXPECT_EQ(first, again);
}

TEST(Dispatcher, checks_the_scale) {
  Pair rpc;
  for (const Json& scale : {Json(0), Json(-1), Json("NaN"), Json("Infinity")}) {
    Json params = rpc.finish(0);
    params["scale"] = scale;
    EXPECT_EQ(rpc.call(1, "step.finish", params)["error"]["data"]["path"], "scale") << scale;
  }
}

TEST(Dispatcher, counts_requests_under_bounded_labels) {
  Harness rpc;
  rpc.open(1);
  rpc.initialize(1);
  rpc.call(1, "made.up.name", Json::object());
  rpc.send(1, "{");
  const std::string text = prometheus::TextSerializer().Serialize(rpc.registry.Collect());
  EXPECT_NE(text.find(R"(gradsync_rpc_requests_total{method="session.initialize",outcome="ok"} 1)"), std::string::npos);
  EXPECT_NE(
      text.find(R"(gradsync_rpc_requests_total{method="unknown",outcome="method_not_found"} 1)"), std::string::npos
  );
  EXPECT_NE(text.find(R"(gradsync_rpc_requests_total{method="unknown",outcome="parse_error"} 1)"), std::string::npos);
  EXPECT_NE(text.find("gradsync_rpc_sessions 1"), std::string::npos);
  EXPECT_EQ(text.find("made.up"), std::string::npos);
  rpc.dispatcher->on_close(1);
  EXPECT_EQ(rpc.metrics.sessions.Value(), 0.0);
}

TEST(Dispatcher, may_end_while_a_call_waits) {
  Pair rpc;
  rpc.request(1, "step.finish", rpc.finish(0));
  rpc.dispatcher.reset();
  rpc.engine.drain();
}

}  // namespace
}  // namespace gradsync::rpc
