// Any text as a file of `gradsyncd plan check`, from the reader to the plan. Every refusal says where it is.

#include "fuzz/declared.hpp"
#include "fuzz/fuzz.hpp"
#include "rpc/wire/declaration_file.hpp"

#include <sstream>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file
  std::istringstream in{std::string(fuzz::text_of(data, size))};
  const Result<rpc::JobDeclaration> job = rpc::read_declaration_file(in);
  if (job) {
    fuzz::check_declared(job->ranks, job->meshes);
  } else {
    REQUIRE(!job.error().message.empty());
    REQUIRE(!job.error().path.empty() || job.error().code == ErrorCode::ParseError);
  }
  return 0;
}
