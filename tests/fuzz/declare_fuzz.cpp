// Params of gradients.declare as texts, one page per line, from the reader to the plan. The first line picks meshes
// (0 to 3); an empty line begins the next rank, and ranks without pages declare what the first one does. A page that
// was read must be written back readable and equal.

#include "fuzz/declared.hpp"
#include "fuzz/fuzz.hpp"
#include "rpc/json/codec.hpp"
#include "rpc/json/json_tape.hpp"
#include "rpc/wire/wire_declare.hpp"

#include <array>
#include <optional>
#include <string>
#include <utility>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

std::optional<rpc::DeclareParams> read_page(std::string_view text) {
  const Result<rpc::Tape> tape = rpc::read_json(text, 32);
  if (!tape) {
    return std::nullopt;
  }
  rpc::DeclareParams params;
  if (!rpc::read_params(tape->root(), params)) {
    return std::nullopt;
  }
  const std::string written = rpc::to_json(params);
  const Result<rpc::Tape> again = rpc::read_json(written, 32);
  rpc::DeclareParams copy;
  REQUIRE(again.has_value() && rpc::read_params(again->root(), copy).has_value());
  REQUIRE(rpc::to_json(copy) == written);
  return params;
}

const std::vector<plan::Mesh>& meshes_of(std::string_view line) {
  static const std::array<std::vector<plan::Mesh>, 4> kMeshes{{
      {{"m", {{"dp", 1}}, {}}},
      {{"m", {{"dp", 2}}, {}}},
      {{"m", {{"dp", 2}, {"tp", 2}}, {}}, {"e", {{"ep", 4}}, {}}},
      {{"m", {{"pp", 2}, {"dp", 3}, {"tp", 1}}, {"tp", "dp", "pp"}}, {"e", {{"pp", 2}, {"ep", 3}}, {}}},
  }};
  return kMeshes[line.empty() ? 0 : static_cast<unsigned char>(line.front()) % kMeshes.size()];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest = fuzz::text_of(data, size);
  const std::vector<plan::Mesh>& meshes = meshes_of(fuzz::next_piece(rest, '\n'));
  std::vector<plan::RankDeclaration> ranks(1);
  while (!rest.empty()) {
    const std::string_view line = fuzz::next_piece(rest, '\n');
    if (line.empty()) {
      ranks.emplace_back();
      continue;
    }
    std::optional<rpc::DeclareParams> page = read_page(line);
    if (!page) {
      return 0;
    }
    if (page->options) {
      ranks.back().options = std::move(*page->options);
    }
    for (rpc::WireTensor& tensor : page->tensors) {
      rpc::append(ranks.back(), std::move(tensor));
    }
  }
  ranks.resize(static_cast<std::size_t>(meshes.front().size()), plan::RankDeclaration(ranks.front()));
  fuzz::check_declared(ranks, meshes);
  return 0;
}
