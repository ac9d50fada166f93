#pragma once
// Dumps of the flight recorders: on a failure, for SIGUSR1 and for `blackbox.dump`. Where several jobs are dumped, the
// next one is looked at when the one before is written, so that the io thread copies one at a time. Thread: io.

#include "app/blackbox/dump_writer.hpp"
#include "app/daemon/engine_clock.hpp"
#include "engine/engine.hpp"
#include "rpc/wire/wire_blackbox.hpp"

#include <boost/asio/io_context.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::app {

class Blackbox {
 public:
  struct Options {
    std::string folder;  ///< empty: there are no dumps
    std::size_t kept_files = 32;
    std::string node;  ///< name of this node
    std::string incarnation;
    std::string release;
  };

  static constexpr std::size_t kMostWanted = 4096;  ///< jobs that wait to be dumped

  Blackbox(boost::asio::io_context& io, Options options);

  /// These exist only after the blackbox.
  void connect(engine::Engine& engine, EngineClock& clock);

  /// For `EngineOptions::keep_dump`.
  void on_failure(engine::FlightDump dump);

  /// In a turn of the engine: dumps the jobs of this name, or all. `reply` comes once, when all of them are written, or
  /// cannot be: then with the first error. Errors: InvalidRequest where dumps are off; UnknownJob; LimitExceeded;
  /// InsufficientMemory where there is no room; InternalError where the folder cannot be used; Draining.
  void dump(rpc::DumpReason why, const std::optional<std::string>& job, engine::Reply<rpc::DumpAnswer> reply);

  /// What is under way is written; no turn begins any more, and who waits hears that.
  void stop();

 private:
  /// Who asked for dumps, and what came of those that are written.
  struct Asked {
    rpc::DumpReason why = rpc::DumpReason::Request;
    engine::Reply<rpc::DumpAnswer> reply;
    std::size_t left = 0;
    rpc::DumpAnswer answer;
    std::optional<Error> error;
  };

  struct Wanted {
    engine::JobKey job;
    std::string name;
    std::shared_ptr<Asked> asked;
  };

  [[nodiscard]] Result<std::vector<Wanted>> wanted_of(const std::optional<std::string>& job);
  [[nodiscard]] std::string next_name(const engine::JobKey& job);
  void take_next();
  void on_written(const std::string& name, const Result<void>& written);
  [[nodiscard]] bool write(engine::FlightDump dump, std::string name, rpc::DumpReason why);
  static void finish(const Wanted& wanted);

  Options options_;
  DumpWriter writer_;
  engine::Engine* engine_ = nullptr;
  EngineClock* clock_ = nullptr;
  std::deque<Wanted> wanted_;
  std::optional<Wanted> writing_;  ///< was taken from these
  std::uint64_t dumps_ = 0;
  bool stopped_ = false;
};

}  // namespace gradsync::app
