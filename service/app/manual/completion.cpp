#include "app/manual/completion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace gradsync::app {

std::vector<std::string> ArgumentText::choices() const {
  if (value.find('|') == std::string::npos) {
    return words;
  }
  std::vector<std::string> listed;
  for (std::size_t at = 0; at <= value.size();) {
    const std::size_t bar = std::min(value.find('|', at), value.size());
    listed.push_back(value.substr(at, bar - at));
    at = bar + 1;
  }
  return listed;
}

namespace {

/// Finds the command in the words so far; bash takes the `=` of --option=value for a word.
constexpr const char* kBashBegin = R"(# bash completion of gradsyncd, written by `gradsyncd completion bash`.
_gradsyncd() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} command= options= words= files= i
  COMPREPLY=()
  if [[ $current == "=" ]]; then
    current=
  elif [[ $previous == "=" ]]; then
    previous=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ ${{COMP_WORDS[i]}} == -- ]]; then
      # Another command follows.
      if declare -F _command_offset >/dev/null; then
        _command_offset $((i + 1))
      elif ((COMP_CWORD == i + 1)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$current")
      else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        compopt -o filenames 2>/dev/null
      fi
      return
    fi
    case "$command ${{COMP_WORDS[i]}}" in
      {}) command=${{COMP_WORDS[i]}} ;;
      {}) command+=" ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case $previous in
)";

constexpr const char* kBashEnd = R"(      esac
      if [[ $current == -* ]]; then
        words=$options files=
      fi
      ;;
  esac
  mapfile -t COMPREPLY < <(
    compgen -W "$words" -- "$current"
    [[ -z $files ]] || compgen -f -- "$current"
  )
  [[ -z $files ]] || compopt -o filenames 2>/dev/null
}
complete -F _gradsyncd gradsyncd
)";

/// Calls `visit(path, command)` for the program and all below it. The path of `gradsyncd config show` is "config show".
template <typename Visit>
void for_each_command(const CommandText& command, const std::string& path, const Visit& visit) {
  visit(path, command);
  for (const CommandText& child : command.commands) {
    for_each_command(child, path.empty() ? child.name : path + " " + child.name, visit);
  }
}

/// What follows an option that takes a value. Options of one name take the same in all commands.
std::string bash_values(const CommandText& program) {
  std::map<std::string, std::vector<std::string>> names_by_action;
  for_each_command(program, "", [&](const std::string&, const CommandText& command) {
    for (const ArgumentText& argument : command.arguments) {
      if (!argument.is_option() || argument.value.empty()) {
        continue;
      }
      const std::vector<std::string> choices = argument.choices();
      const std::string action = !choices.empty()     ? fmt::format("words=\"{}\"", fmt::join(choices, " "))
                                 : argument.is_path() ? "files=yes"
                                                      : "return";
      std::vector<std::string>& names = names_by_action[action];
      for (const std::string& name : argument.names) {
        if (std::find(names.begin(), names.end(), name) == names.end()) {
          names.push_back(name);
        }
      }
    }
  });
  std::string text;
  for (const auto& [action, names] : names_by_action) {
    text += fmt::format("    {}) {} ;;\n", fmt::join(names, " | "), action);
  }
  return text;
}

/// What a command itself takes.
std::string bash_line(const std::string& path, const CommandText& command) {
  std::vector<std::string> options;
  std::vector<std::string> words;
  bool files = false;
  for (const ArgumentText& argument : command.arguments) {
    const std::vector<std::string> choices = argument.choices();
    if (argument.is_option()) {
      options.insert(options.end(), argument.names.begin(), argument.names.end());
    } else {
      words.insert(words.end(), choices.begin(), choices.end());
      files |= argument.is_path();
    }
  }
  for (const CommandText& child : command.commands) {
    words.push_back(child.name);
  }
  if (command.runs_another) {
    words.push_back("--");
  }
  return fmt::format(
      "        \"{}\") options=\"{}\" words=\"{}\" files={} ;;\n",
      path,
      fmt::join(options, " "),
      fmt::join(words, " "),
      files ? "yes" : ""
  );
}

}  // namespace

std::string bash_completion(const CommandText& program) {
  std::vector<std::string> first;
  std::vector<std::string> second;
  std::string lines;
  for_each_command(program, "", [&](const std::string& path, const CommandText& command) {
    lines += bash_line(path, command);
    if (!path.empty()) {
      const bool is_below = path.find(' ') != std::string::npos;
      (is_below ? second : first).push_back(fmt::format("\"{}{}\"", is_below ? "" : " ", path));
    }
  });
  return fmt::format(kBashBegin, fmt::join(first, " | "), fmt::join(second, " | ")) + bash_values(program) +
         "    *)\n      case $command in\n" + lines + kBashEnd;
}

}  // namespace gradsync::app
