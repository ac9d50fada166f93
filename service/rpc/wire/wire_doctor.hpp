#pragma once
// What a doctor found on the node: the answer of `doctor.run`, and the list that `gradsyncd doctor --json` prints.

#include "rpc/json/codec.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::rpc {

/// A thing that was looked at.
struct DoctorFinding {
  enum class Level : std::uint8_t {
    Ok,
    Note,     ///< worth knowing; nothing has to be done
    Problem,  ///< something will not work
  };

  Level level = Level::Ok;
  std::string what;
  std::string hint = {};  ///< what to do about it

  friend bool operator==(const DoctorFinding&, const DoctorFinding&) = default;
};

struct DoctorAnswer {
  std::vector<DoctorFinding> findings;
  bool well = true;
  std::vector<std::string> gpus;

  friend bool operator==(const DoctorAnswer&, const DoctorAnswer&) = default;
};

template <>
struct EnumNames<DoctorFinding::Level> {
  static constexpr std::array<std::pair<const char*, DoctorFinding::Level>, 3> kEntries{{
      {"ok", DoctorFinding::Level::Ok},
      {"note", DoctorFinding::Level::Note},
      {"problem", DoctorFinding::Level::Problem},
  }};
};

template <>
struct Fields<DoctorFinding> {
  static constexpr const char* kName = "DoctorFinding";

  static void visit(auto& v, auto& s) {
    v.required("level", s.level, "ok, note: worth knowing, or problem: something will not work");
    v.required("what", s.what, "was found, in words");
    v.required("hint", s.hint, "what to do about it, or empty");
  }
};

template <>
struct Fields<DoctorAnswer> {
  static constexpr const char* kName = "DoctorResult";

  static void visit(auto& v, auto& s) {
    v.required("findings", s.findings, "one for each thing that was looked at");
    v.required("well", s.well, "none of them is a problem");
    v.required("gpus", s.gpus, "UUIDs of the GPUs that the daemon may use");
  }
};

}  // namespace gradsync::rpc
