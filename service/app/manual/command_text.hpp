#pragma once
// The command line as texts: what manual pages and shell completion are written from.

#include <string>
#include <vector>

namespace gradsync::app {

/// An option, or an argument without a flag.
struct ArgumentText {
  std::vector<std::string> names;  ///< with their dashes; of an argument without a flag: its one name
  std::string value;               ///< FILE, N, "text|json"; empty: a flag that takes none
  std::string doc;
  bool is_setting = false;         ///< a key of the configuration file
  bool is_repeated = false;        ///< takes every word that follows
  std::vector<std::string> words;  ///< that are allowed, where `value` does not list them

  [[nodiscard]] bool is_option() const { return names.front().front() == '-'; }

  /// The words that are allowed; empty: any.
  [[nodiscard]] std::vector<std::string> choices() const;

  [[nodiscard]] bool is_path() const { return value == "FILE" || value == "DIRECTORY" || value == "SOCKET"; }
};

struct CommandText {
  std::string name;  ///< its own word: "show" of `gradsyncd config show`
  std::string summary;
  std::string footer;         ///< below the options in --help: examples, and what is to be known of them
  bool runs_another = false;  ///< what follows `--` is a command of its own
  std::vector<ArgumentText> arguments;
  std::vector<CommandText> commands;
};

}  // namespace gradsync::app
