#pragma once
// Writes dumps on a thread of its own, `blackbox`: a disk may be slow, and the text of a dump takes milliseconds. Where
// a dump cannot be written there is one warning until one can, and nothing else.
//
// Thread: io, but for the thread started here. It is joined at the end, and left behind where it hangs in the system.

#include "base/clock.hpp"
#include "base/error.hpp"
#include "engine/recorder/flight_dump.hpp"
#include "rpc/wire/dump_file.hpp"

#include <boost/asio/io_context.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace gradsync::app {

/// A dump on its way to its file.
struct DumpWork {
  std::string name;
  engine::FlightDump dump;
  rpc::DumpOrigin origin;
};

class DumpWriter {
 public:
  static constexpr std::size_t kMostWaiting = 16;  ///< of at most 576 KiB each, and their words
  static constexpr Milliseconds kPatience{2'000};  ///< for those that wait, at the end

  /// Name of the dump, and how that went.
  using OnWritten = std::function<void(const std::string& name, const Result<void>& written)>;

  /// `on_written` is called on the io thread when a dump is written, or could not be.
  DumpWriter(boost::asio::io_context& io, std::string folder, std::size_t kept_files, OnWritten on_written);
  ~DumpWriter();
  DumpWriter(const DumpWriter&) = delete;
  DumpWriter& operator=(const DumpWriter&) = delete;

  /// False: too many wait, or there is no thread to be had.
  bool write(DumpWork work);

  [[nodiscard]] bool idle() const;

  /// What waits is written, within `kPatience`; `io` is not touched again.
  void stop();

 private:
  struct State;

  bool start();  ///< false: there is no thread to be had

  std::shared_ptr<State> state_;  ///< shared with a thread that hangs
};

}  // namespace gradsync::app
