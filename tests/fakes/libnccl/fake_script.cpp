#include "fakes/libnccl/fake_script.hpp"

#include <algorithm>
#include <array>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace gradsync::fakes {

namespace {

constexpr std::array<std::string_view, 7> kKinds = {
    "never_joins", "fails_to_join", "never_comes", "stops", "error", "abort_hangs", "slow_launch"};

void read_word(const std::string& word, FakeFault& fault) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos) {
    if (std::find(kKinds.begin(), kKinds.end(), word) == kKinds.end()) {
      throw std::invalid_argument("'" + word + "' is no fault of the fake NCCL");
    }
    fault.kind = word;
    return;
  }
  const std::string key = word.substr(0, equals);
  const std::string value = word.substr(equals + 1);
  if (key == "of") {
    fault.of = value;
  } else if (key == "rank") {
    fault.rank = std::stoi(value);
  } else if (key == "operation") {
    fault.operation = std::stol(value);
  } else if (key == "polls") {
    fault.polls = std::stoi(value);
  } else if (key == "code") {
    fault.code = std::stoi(value);
  } else {
    throw std::invalid_argument("'" + key + "' says nothing about a fault of the fake NCCL");
  }
}

}  // namespace

std::vector<FakeFault> read_script(const std::string& text) {
  std::vector<FakeFault> faults;
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ';');) {
    std::istringstream words(entry);
    FakeFault fault;
    for (std::string word; words >> word;) {
      read_word(word, fault);
    }
    if (!fault.kind.empty()) {
      faults.push_back(fault);
    }
  }
  return faults;
}

}  // namespace gradsync::fakes
