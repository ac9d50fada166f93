// Dumps of flight recorders from anywhere: read, put side by side, analysed and drawn. One byte says how many files the
// text is cut into; what is read is written again and read as the same.

#include "app/blackbox/chrome_trace.hpp"
#include "app/blackbox/flight_analysis.hpp"
#include "app/blackbox/flight_text.hpp"
#include "fuzz/fuzz.hpp"

#include <sstream>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file
  const std::string text(fuzz::text_of(data, size));
  std::vector<app::NamedDump> dumps;
  std::size_t begin = 0;
  while (begin <= text.size() && dumps.size() < 4) {  // files follow each other, with an empty line between them
    const std::size_t end = std::min(text.find("\n\n", begin), text.size());
    std::istringstream in(text.substr(begin, end - begin));
    Result<rpc::DumpFile> dump = rpc::read_dump_file(in);
    if (dump.has_error()) {
      REQUIRE(!dump.error().message.empty());
      return 0;
    }
    std::istringstream again(rpc::dump_text(*dump));
    const Result<rpc::DumpFile> same = rpc::read_dump_file(again);
    REQUIRE(same && *same == *dump);
    dumps.push_back({"file " + std::to_string(dumps.size()), std::move(*dump)});
    begin = end + 2;
  }
  const Result<app::FlightWorld> world = app::make_world(dumps, "");
  if (world.has_error()) {
    REQUIRE(!world.error().path.empty() && !world.error().message.empty());
    return 0;
  }
  const app::FlightFinding finding = app::analyze_flight(*world);
  REQUIRE(!finding.sentence.empty() && finding.sentence.back() == '.');
  REQUIRE(app::flight_text(*world, finding).starts_with(finding.sentence));
  REQUIRE(app::flight_json(*world, finding).starts_with("{"));
  REQUIRE(app::chrome_trace(*world).ends_with("}"));
  return 0;
}
