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
#include <optional>
#include <string>

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

  /// In a turn of the engine: dumps the jobs of this name, or all. Errors: InvalidRequest where dumps are off;
  /// UnknownJob; LimitExceeded.
  [[nodiscard]] Result<rpc::DumpAnswer> dump(rpc::DumpReason why, const std::optional<std::string>& job);

  /// What is under way is written; no turn begins any more.
  void stop();

 private:
  struct Wanted {
    engine::JobKey job;
    std::string name;
    rpc::DumpReason why = rpc::DumpReason::Request;
  };

  [[nodiscard]] std::string next_name(const engine::JobKey& job);
  void take_next();
  [[nodiscard]] bool write(engine::FlightDump dump, std::string name, rpc::DumpReason why);

  Options options_;
  DumpWriter writer_;
  engine::Engine* engine_ = nullptr;
  EngineClock* clock_ = nullptr;
  std::deque<Wanted> wanted_;
  std::uint64_t dumps_ = 0;
  bool stopped_ = false;
};

}  // namespace gradsync::app
