#include "app/blackbox/flight_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <vector>

namespace gradsync::app {

namespace {

using Json = nlohmann::ordered_json;
using engine::AttemptState;

constexpr std::size_t kShown = 10;  ///< attempts
constexpr double kMilli = 1e-3;

/// One attempt on one node.
struct Row {
  AttemptKey key;
  const FlightView* view;
  const rpc::DumpAttempt* attempt;
};

std::vector<Row> rows_of(const FlightWorld& world) {
  std::vector<AttemptKey> keys = world.attempts();
  if (keys.size() > kShown) {
    keys.erase(keys.begin(), keys.end() - static_cast<std::ptrdiff_t>(kShown));
  }
  std::vector<Row> rows;
  for (const AttemptKey& key : keys) {
    for (const FlightView& view : world.views) {
      if (const rpc::DumpAttempt* attempt = view.attempt(key)) {
        rows.push_back({key, &view, attempt});
      }
    }
  }
  return rows;
}

std::optional<double> between_ms(std::optional<std::int64_t> from_us, std::optional<std::int64_t> to_us) {
  return from_us && to_us ? std::optional(static_cast<double>(*to_us - *from_us) * kMilli) : std::nullopt;
}

std::string state_of(const rpc::DumpAttempt& attempt) {
  return attempt.error                           ? *attempt.error
         : attempt.state == AttemptState::Open   ? "open"
         : attempt.state == AttemptState::Failed ? "failed"
                                                 : "done";
}

std::string number(std::optional<double> value) { return value ? fmt::format("{:.1f}", *value) : "-"; }

template <typename T>
std::string number(std::optional<T> value) {
  return value ? fmt::format("{}", *value) : "-";
}

std::string table_of(const FlightWorld& world) {
  constexpr const char* kLine = "{:>8} {:>10} {:>8}  {:<16} {:<13} {:>9} {:>9} {:>9} {:>10} {:>9}\n";
  std::string text = fmt::format(
      kLine, "step", "epoch", "attempt", "node", "state", "last rank", "ranks ms", "alone ms", "reduced", "total ms"
  );
  for (const Row& row : rows_of(world)) {
    const rpc::DumpAttempt& attempt = *row.attempt;
    text += fmt::format(
        kLine,
        number(attempt.step),
        row.key.first,
        row.key.second,
        row.view->name(),
        state_of(attempt),
        number(attempt.last_rank),
        number(between_ms(attempt.first_ask_us, attempt.last_ask_us)),
        number(between_ms(attempt.ask_before_last_us, attempt.last_ask_us)),
        fmt::format("{}/{}", attempt.reduced, attempt.launched),
        number(between_ms(attempt.begun_us, attempt.ended_us ? attempt.ended_us : row.view->head->taken_us))
    );
  }
  return text;
}

template <typename T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json row_json(const Row& row) {
  const rpc::DumpAttempt& attempt = *row.attempt;
  return {
      {"epoch", row.key.first},
      {"attempt", row.key.second},
      {"step", json_of(attempt.step)},
      {"node", row.view->name()},
      {"state", state_of(attempt)},
      {"last_rank", json_of(attempt.last_rank)},
      {"ranks_ms", json_of(between_ms(attempt.first_ask_us, attempt.last_ask_us))},
      {"alone_ms", json_of(between_ms(attempt.ask_before_last_us, attempt.last_ask_us))},
      {"launched", attempt.launched},
      {"reduced", attempt.reduced},
      {"total_ms", json_of(between_ms(attempt.begun_us, attempt.ended_us))}};
}

}  // namespace

std::string flight_text(const FlightWorld& world, const FlightFinding& finding) {
  std::string text = finding.sentence + "\n\n" + table_of(world);
  for (const std::int64_t node : world.absent()) {
    text += fmt::format("no dump of node {}\n", world.node_name(node));
  }
  for (const std::string& file : world.left_out) {
    text += fmt::format("left out: {}, because there is a newer one\n", file);
  }
  return text;
}

std::string flight_json(const FlightWorld& world, const FlightFinding& finding) {
  Json json{
      {"job", world.job},
      {"finding", name_of(finding.kind)},
      {"sentence", finding.sentence},
      {"epoch", finding.attempt ? Json(finding.attempt->first) : Json(nullptr)},
      {"attempt", finding.attempt ? Json(finding.attempt->second) : Json(nullptr)},
      {"step", json_of(finding.step)},
      {"rank", json_of(finding.rank)},
      {"node", finding.node ? Json(world.node_name(*finding.node)) : Json(nullptr)},
      {"peer", finding.peer ? Json(world.node_name(*finding.peer)) : Json(nullptr)},
      {"bucket", json_of(finding.bucket)},
      {"seconds", json_of(finding.seconds)},
      {"attempts", Json::array()},
      {"absent", Json::array()},
      {"left_out", world.left_out}};
  for (const Row& row : rows_of(world)) {
    json["attempts"].push_back(row_json(row));
  }
  for (const std::int64_t node : world.absent()) {
    json["absent"].push_back(world.node_name(node));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace gradsync::app
