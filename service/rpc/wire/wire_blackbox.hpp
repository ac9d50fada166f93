#pragma once
// Params and result of `blackbox.dump`.

#include "rpc/json/codec.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::rpc {

struct DumpParams {
  std::optional<std::string> job;
};

struct DumpedJob {
  std::string job;
  std::uint32_t uid = 0;
  std::string file;
};

struct DumpAnswer {
  std::vector<DumpedJob> dumps;
};

template <>
struct Fields<DumpParams> {
  static constexpr const char* kName = "DumpParams";

  static void visit(auto& v, auto& s) { v.optional("job", s.job, "only jobs of this name", kNameLength); }
};

template <>
struct Fields<DumpedJob> {
  static constexpr const char* kName = "DumpedJob";

  static void visit(auto& v, auto& s) {
    v.required("job", s.job, "name");
    v.required("uid", s.uid, "owner");
    v.required("file", s.file, "path of the dump, which is there as a whole or not at all");
  }
};

template <>
struct Fields<DumpAnswer> {
  static constexpr const char* kName = "DumpResult";

  static void visit(auto& v, auto& s) { v.required("dumps", s.dumps, "that were written"); }
};

}  // namespace gradsync::rpc
