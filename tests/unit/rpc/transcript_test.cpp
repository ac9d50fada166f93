// Replays tests/contract/*.jsonl against the dispatcher, the real engine and the real host lane, with a clock that the
// transcript moves. tests/python/live/test_transcripts.py replays the same files against the daemon.

#include "transcript.hpp"

#include "fakes/inline_host_lane.hpp"
#include "rpc/error_codes.hpp"
#include "rpc/handlers/method.hpp"
#include "rpc_harness.hpp"

#include <unistd.h>

namespace gradsync::rpc {
namespace {

class Replay {
 public:
  explicit Replay(const Transcript& transcript) : transcript_(transcript) { variables_["job"] = transcript.name; }

  void run() {
    std::size_t number = 0;
    for (const Json& line : transcript_.lines) {
      ++number;
      SCOPED_TRACE("line " + std::to_string(number) + ": " + line.dump());
      perform(line);
      if (testing::Test::HasFailure()) {
        return;
      }
    }
    for (const auto& [connection, messages] : rpc_.outbox.sent) {
      EXPECT_TRUE(messages.empty()) << "not expected at the end: " << messages.front();
    }
  }

 private:
  void perform(const Json& line) {
    const std::string on = line["on"];
    variables_["on"] = on;
    if (line.contains("set")) {
      for (const auto& [name, value] : line["set"].items()) {
        variables_[name] = substitute(value, variables_);
      }
    } else if (line.contains("open")) {
      open(on, line["open"]);
    } else if (line.contains("send")) {
      rpc_.send(connection(on), substitute(line["send"], variables_).dump());
    } else if (line.contains("send_text")) {
      rpc_.send(connection(on), line["send_text"].get<std::string>());
    } else if (line.contains("expect")) {
      expect(on, line["expect"]);
    } else if (line.contains("expect_error")) {
      expect(on, error_pattern(line["expect_error"]));
    } else if (line.contains("expect_nothing")) {
      EXPECT_EQ(rpc_.outbox.take(connection(on)), "");
    } else if (line.contains("post")) {
      post(line);
    } else if (line.contains("fetch")) {
      fetch(on, line);
    } else if (line.contains("fill")) {
      fill(line["fill"]);
    } else if (line.contains("advance_s")) {
      rpc_.pass(std::chrono::duration_cast<Milliseconds>(std::chrono::duration<double>(line["advance_s"].get<double>()))
      );
    } else if (line.contains("close")) {
      rpc_.dispatcher->on_close(connection(on));
      rpc_.pump();
      connections_.erase(on);
    } else if (line.contains("exit")) {
      rpc_.dispatcher->on_process_exit(connection(on));
      rpc_.pump();
    } else if (line.contains("lane_fails")) {
      rpc_.lane.failing = line["lane_fails"];
    } else if (line.contains("doctor_fails")) {
      rpc_.examination = make_error(
          ErrorCode::DoctorFailed,
          line["doctor_fails"].get<std::string>(),
          "run gradsyncd doctor by hand, where the daemon runs"
      );
    } else if (line.contains("drain")) {
      rpc_.draining = true;
      rpc_.engine.drain();
    } else {
      ADD_FAILURE() << "a line that means nothing";
    }
  }

  ConnectionId open(const std::string& on, const Json& options) {
    Peer peer = Harness::local_peer();
    peer.local = !options.value("tcp", false);
    peer.privileged = options.value("privileged", true);
    peer.uid = options.value("uid", peer.uid);
    peer.pid = options.value("pid", peer.pid);
    peers_[on] = peer;
    rpc_.open(++last_connection_, peer);
    return connections_[on] = last_connection_;
  }

  ConnectionId connection(const std::string& on) {
    const auto at = connections_.find(on);
    return at != connections_.end() ? at->second : open(on, Json::object());
  }

  void expect(const std::string& on, const Json& pattern) {
    const std::string text = rpc_.outbox.take(connection(on));
    ASSERT_NE(text, "") << "no message came";
    EXPECT_EQ(mismatch(pattern, Json::parse(text), variables_), "");
  }

  static Json error_pattern(const Json& expected) {
    const std::string page = "<has:(gradsyncd explain " + expected["kind"].get<std::string>() + ")>";
    Json data = {{"kind", expected["kind"]}, {"hint", page}, {"...", true}};
    Json message = "<text>";
    for (const auto& [key, value] : expected.items()) {
      if (key == "message") {
        message = value;
      } else if (key != "id") {
        data[key] = value;
      }
    }
    for (const ErrorRow& row : error_rows()) {
      if (expected["kind"] == kind_of(row.code)) {
        data["retryable"] = row.retryable;
        return {
            {"jsonrpc", "2.0"},
            {"id", expected["id"]},
            {"error", {{"code", row.json_rpc}, {"message", message}, {"data", data}}}};
      }
    }
    ADD_FAILURE() << "no such kind: " << expected["kind"];
    return {};
  }

  void post(const Json& line) {
    const Json& body = line["post"];
    const PostReply reply = rpc_.dispatcher->on_post(
        Harness::local_peer(), body.is_string() ? body.get<std::string>() : substitute(body, variables_).dump()
    );
    EXPECT_EQ(reply.status, line["status"].get<int>());
    if (line.contains("body")) {
      EXPECT_EQ(mismatch(line["body"], Json::parse(reply.body), variables_), "");
    } else {
      EXPECT_EQ(reply.body, "");
    }
  }

  /// The fd socket: a token goes in, a line of JSON and perhaps a descriptor come out.
  void fetch(const std::string& on, const Json& line) {
    const auto peer = peers_.try_emplace(on, Harness::local_peer()).first->second;
    const std::string token = substitute(line["fetch"], variables_);
    auto taken = rpc_.engine.exchange_fd(token, peer.uid, peer.pid, UniqueFd{});
    Json answer;
    if (taken) {
      answer["bytes"] = taken->size_bytes;
      arenas_.insert_or_assign(token, std::move(taken->fd));
    } else {
      answer["error"] = Json::parse(error_json(taken.error()));
    }
    EXPECT_EQ(mismatch(line["answer"], answer, variables_), "");
  }

  /// Writes float32 values into an arena, as a trainer's backward pass would.
  void fill(const Json& what) {
    const std::string token = substitute(what["token"], variables_);
    if (!arenas_.contains(token)) {
      auto taken = rpc_.engine.exchange_fd(token, Harness::local_peer().uid, Harness::local_peer().pid, UniqueFd{});
      ASSERT_TRUE(taken) << taken.error().message;
      arenas_.emplace(token, std::move(taken->fd));
    }
    const std::string bytes =
        what.contains("rows") ? rows_of(substitute(what["rows"], variables_)) : values_of(what["values"]);
    ASSERT_EQ(
        ::pwrite(arenas_.at(token).get(), bytes.data(), bytes.size(), what.value("offset", 0)),
        static_cast<ssize_t>(bytes.size())
    );
  }

  static std::string values_of(const Json& given) {
    std::string bytes;
    for (const Json& value : given) {
      const float number = value.is_string() ? std::stof(value.get<std::string>()) : value.get<float>();
      bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
    }
    return bytes;
  }

  /// A number, or the stamp of "epoch.attempt".
  static std::uint64_t stamp_of(const Json& given) {
    if (!given.is_string()) {
      return given.get<std::uint64_t>();
    }
    const std::string text = given;
    const std::size_t point = text.find('.');
    return engine::attempt_word({std::stoull(text.substr(0, point)), std::stoull(text.substr(point + 1))});
  }

  static std::string rows_of(const Json& given) {
    std::string bytes;
    for (const Json& row : given) {
      const device::StatsRow filled{
          stamp_of(row[0]),
          row[1].get<double>(),
          row[2].get<double>(),
          row[3].get<double>(),
          row[4].get<double>(),
          row[5].get<std::uint64_t>(),
          row[6].get<std::uint64_t>(),
          row[7].get<std::uint64_t>()};
      bytes.append(reinterpret_cast<const char*>(&filled), sizeof(filled));
    }
    return bytes;
  }

  using Harness = RpcHarness<fakes::InlineHostLane>;

  const Transcript& transcript_;
  Harness rpc_;
  Variables variables_;
  std::map<std::string, ConnectionId> connections_;
  std::map<std::string, Peer> peers_;
  std::map<std::string, UniqueFd> arenas_;
  ConnectionId last_connection_ = 0;
};

class Transcripts : public testing::TestWithParam<Transcript> {};

TEST_P(Transcripts, replays) { Replay(GetParam()).run(); }

INSTANTIATE_TEST_SUITE_P(contract, Transcripts, testing::ValuesIn(load_transcripts()), [](const auto& test) {
  return test.param.name;
});

void collect_kinds(const Json& value, std::set<std::string>& kinds) {
  if (value.is_object() && value.contains("kind") && value["kind"].is_string()) {
    kinds.insert(value["kind"].get<std::string>());
  }
  for (const Json& child : value) {
    if (child.is_structured()) {
      collect_kinds(child, kinds);
    }
  }
}

/// The player has one daemon, so nothing raises these in a transcript.
const std::set<std::string> kKindsOverNodes{"no_peers", "node_refused", "node_lost", "step_in_doubt"};

TEST(Contract, has_every_error_kind_and_every_method) {
  std::set<std::string> kinds;
  std::set<std::string> sent;
  for (const Transcript& transcript : load_transcripts()) {
    for (const Json& line : transcript.lines) {
      collect_kinds(line.value("expect", Json()), kinds);
      collect_kinds(line.value("expect_error", Json()), kinds);
      collect_kinds(line.value("answer", Json()), kinds);
      if (line.contains("send") && line["send"].is_object() && line.contains("example")) {
        sent.insert(line["send"]["method"].get<std::string>());
      }
    }
  }
  for (const ErrorRow& row : error_rows()) {
    const std::string kind = kind_of(row.code);
    EXPECT_NE(kinds.contains(kind), kKindsOverNodes.contains(kind)) << kind << " occurs in no transcript, or now does";
  }
  for (const Method& method : methods()) {
    EXPECT_TRUE(sent.contains(method.name)) << method.name << " has no example in a transcript";
  }
}

}  // namespace

void PrintTo(const Transcript& transcript, std::ostream* out) { *out << transcript.file << ": " << transcript.name; }

}  // namespace gradsync::rpc
