#include "app/manual/completion.hpp"

#include <fmt/format.h>

namespace gradsync::app {

namespace {

/// A word of a script in single quotes.
std::string zsh_quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return quoted + "'";
}

/// `text` with a backslash before each of `special`, which zsh's functions take for their own.
std::string zsh_escaped(std::string_view text, std::string_view special) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || special.find(c) != std::string_view::npos) {
      escaped += '\\';
    }
    escaped += c;
  }
  return escaped;
}

/// How the value of an argument is completed: ":message:action" of _arguments.
std::string zsh_value(const ArgumentText& argument, const std::string& message) {
  const std::vector<std::string> choices = argument.choices();
  const std::string action = !choices.empty()                ? fmt::format("({})", fmt::join(choices, " "))
                             : argument.value == "DIRECTORY" ? "_files -/"
                             : argument.is_path()            ? "_files"
                                                             : "";
  return fmt::format(":{}:{}", zsh_escaped(message, ":"), action);
}

/// An argument as _arguments takes it, each name of an option by itself; the other names exclude it.
std::string zsh_argument(const ArgumentText& argument) {
  if (!argument.is_option()) {
    return fmt::format(
        " \\\n    {}", zsh_quoted((argument.is_repeated ? "*" : "") + zsh_value(argument, argument.names.front()))
    );
  }
  const std::string doc = zsh_escaped(argument.doc, "[]");
  const std::string value = argument.value.empty() ? "" : zsh_value(argument, argument.value);
  const std::string excluded = argument.is_repeated ? "*" : fmt::format("({})", fmt::join(argument.names, " "));
  std::string text;
  for (const std::string& name : argument.names) {
    text += fmt::format(
        " \\\n    {}", zsh_quoted(fmt::format("{}{}{}[{}]{}", excluded, name, value.empty() ? "" : "=", doc, value))
    );
  }
  return text;
}

/// One function per command, those below it first.
std::string zsh_function(const CommandText& command, const std::string& name) {
  std::string text;
  std::string names;
  std::string calls;
  for (const CommandText& child : command.commands) {
    const std::string function = name + "_" + child.name;
    text += zsh_function(child, function);
    names += fmt::format("\n        {}", zsh_quoted(child.name + ":" + zsh_escaped(child.summary, "")));
    calls += fmt::format("        {}) {} ;;\n", child.name, function);
  }
  text += fmt::format("{}() {{\n", name);
  if (!command.commands.empty()) {
    text += "  local curcontext=$curcontext state line\n  local -a commands\n  typeset -A opt_args\n";
  }
  text += "  _arguments -S";
  text += command.commands.empty() ? "" : " -C";
  for (const ArgumentText& argument : command.arguments) {
    text += zsh_argument(argument);
  }
  if (command.runs_another) {
    text += " \\\n    '*::command:_normal'";
  }
  if (command.commands.empty()) {
    return text + "\n}\n\n";
  }
  text += " \\\n    '1:command:->command' \\\n    '*::argument:->argument'\n  case $state in\n";
  text += fmt::format(
      "    command)\n      commands=({}\n      )\n      _describe -t commands command commands\n      ;;\n", names
  );
  text += fmt::format("    argument)\n      case $words[1] in\n{}      esac\n      ;;\n  esac\n}}\n\n", calls);
  return text;
}

}  // namespace

std::string zsh_completion(const CommandText& program) {
  // Autoloaded, the file itself is the function; sourced, it names the function.
  return "#compdef gradsyncd\n# Written by `gradsyncd completion zsh`.\n\n" + zsh_function(program, "_gradsyncd") +
         "if [ \"$funcstack[1]\" = _gradsyncd ]; then\n  _gradsyncd \"$@\"\nelse\n  compdef _gradsyncd gradsyncd\nfi\n";
}

}  // namespace gradsync::app
