#include "app/manual/man_pages.hpp"

#include "app/cli/exit_code.hpp"
#include "app/config/configuration.hpp"
#include "app/config/option_text.hpp"
#include "base/text/text.hpp"
#include "base/version.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace gradsync::app {

namespace {

constexpr const char* kDescription = R"(gradsyncd runs beside the trainers of one machine.
It adds up the gradients of all ranks, or takes those that a framework has added up, measures their exact norm and
clips them.
Trainers connect to its unix socket by the Python package gradsync.
One daemon serves all of a machine's users who may open the socket (\fBgradsyncd serve\fR), or one command has a daemon
of its own (\fBgradsyncd run\fR).
)";

constexpr const char* kEnvironment = R"(.SH ENVIRONMENT
.TP
.B GRADSYNC_CONFIG
The configuration file, where \fB\-\-config\fR does not name it.
.TP
.B GRADSYNC_ADDRESS
The socket of the daemon, where \fB\-\-address\fR does not name it; \fBrun\fR sets it for its command.
.TP
.BI GRADSYNC_ SECTION _ KEY
A setting; see
.BR gradsyncd.toml (5).
)";

constexpr const char* kFiles = R"(.SH FILES
.TP
.I /etc/gradsync/gradsyncd.toml
Settings; see
.BR gradsyncd.toml (5).
.TP
.I /run/gradsync/gradsync.sock
Socket of the machine's daemon.
.SH SEE ALSO
.BR gradsyncd.toml (5),
.BR systemctl (1)
)";

constexpr const char* kSettingsDescription = R"(.SH DESCRIPTION
A file in TOML.
Every key has a default; a key that does not exist, or a value of a wrong type, is an error that names the line.
A flag of the command line overrides the environment, which overrides the file.
Strings are in double quotes, MODE is octal like 0o660, lists are like [1000, 1001].
.PP
\fBgradsyncd check\-config\fR checks the file.
\fBgradsyncd config show \-\-origin\fR prints every setting and where its value came from.
\fBsystemctl restart gradsyncd\fR makes the daemon read it; trainers wait for its return and go on.
.SH SETTINGS
)";

char32_t code_point(std::string_view character) {
  constexpr unsigned kFirstBits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  char32_t code = static_cast<unsigned char>(character.front()) & kFirstBits[character.size()];
  for (const char c : character.substr(1)) {
    code = code << 6 | (static_cast<unsigned char>(c) & 0x3f);
  }
  return code;
}

/// Text that stands in a line of roff: ASCII only, and nothing of it is taken for a request.
std::string roff(std::string_view text) {
  std::string escaped = text.starts_with('.') ? "\\&" : "";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = std::max<std::size_t>(utf8_length(text, at), 1);
    const std::string_view character = text.substr(at, length);
    at += length;
    constexpr std::pair<char, const char*> kNames[] = {
        {'\\', "\\(rs"}, {'-', "\\-"}, {'\'', "\\(aq"}, {'`', "\\(ga"}, {'^', "\\(ha"}, {'~', "\\(ti"}, {'"', "\\(dq"}};
    const auto* const named = std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& each) {
      return each.first == character.front();
    });
    if (length > 1) {
      escaped += fmt::format("\\[u{:04X}]", static_cast<std::uint32_t>(code_point(character)));
    } else if (named != std::end(kNames)) {
      escaped += named->second;
    } else {
      escaped += character;
    }
  }
  return escaped;
}

/// Names of options and variables are not hyphenated, and lines are not stretched.
std::string title(std::string_view name, int section, std::string_view date, std::string_view of) {
  return fmt::format(".TH {} {} \"{}\" \"gradsyncd {}\" \"{}\"\n.nh\n.ad l\n", name, section, date, kVersion, of);
}

/// "--server-socket, --socket SOCKET" and what it is for.
std::string argument_item(const ArgumentText& argument) {
  std::string line;
  for (const std::string& name : argument.names) {
    line += fmt::format("{}\\f{}{}\\fR", line.empty() ? "" : ", ", argument.is_option() ? 'B' : 'I', roff(name));
  }
  if (!argument.value.empty() && argument.is_option()) {
    line += fmt::format(" \\fI{}\\fR", roff(argument.value));
  }
  return fmt::format(".TP\n{}\n{}\n", line, roff(argument.doc));
}

/// Lines "Example: …" and "  command   what it does" as examples; the others as they are.
std::string footer_text(std::string_view footer, bool examples_only) {
  std::string text;
  while (!footer.empty()) {
    const std::size_t end = std::min(footer.find('\n'), footer.size());
    const std::string_view line = footer.substr(0, end);
    footer.remove_prefix(std::min(end + 1, footer.size()));
    constexpr std::string_view kExample = "Example: ";
    if (line.starts_with("  ")) {
      const std::string_view command = line.substr(2, line.find("   ", 2) - 2);
      const std::string_view meaning =
          line.substr(std::min(line.find_first_not_of(' ', 2 + command.size()), line.size()));
      text += fmt::format(".TP\n.B {}\n{}\n", roff(command), meaning.empty() ? "\\&" : roff(meaning));
    } else if (line.starts_with(kExample)) {
      text += fmt::format(".PP\nExample: \\fB{}\\fR\n", roff(line.substr(kExample.size())));
    } else if (!line.empty() && !examples_only) {
      text += fmt::format(".br\n{}\n", roff(line));
    }
  }
  return text;
}

bool has_settings(const CommandText& command) {
  return std::any_of(command.arguments.begin(), command.arguments.end(), [](const ArgumentText& argument) {
    return argument.is_setting;
  });
}

/// Every command has these; the page says it once.
bool is_help(const ArgumentText& argument) { return argument.names.back().starts_with("--help"); }

/// The synopsis of a command and its own options. Settings have a section of their own.
std::string command_section(const CommandText& command, const std::string& path) {
  std::string text;
  if (command.commands.empty()) {
    std::string synopsis = fmt::format("{} {} [OPTIONS]", path, command.name);
    std::string items;
    for (const ArgumentText& argument : command.arguments) {
      if (!argument.is_setting && !is_help(argument)) {
        items += argument_item(argument);
      }
      synopsis += argument.is_option() ? "" : " " + argument.names.front();
    }
    synopsis += command.runs_another ? " -- COMMAND" : "";
    text = fmt::format(".SS \"{}\"\n{}.\n{}", roff(synopsis), roff(command.summary), items);
    text += has_settings(command) ? ".PP\nEach setting is an option, too; see SETTINGS.\n" : "";
    text += footer_text(command.footer, false);
  }
  for (const CommandText& child : command.commands) {
    text += command_section(child, path + " " + command.name);
  }
  return text;
}

/// The settings of one command stand for those of all.
std::string settings_section(const CommandText& program) {
  std::string text = ".SH SETTINGS\nDefaults are in\n.BR gradsyncd.toml (5).\n";
  const auto with = std::find_if(program.commands.begin(), program.commands.end(), has_settings);
  for (const ArgumentText& argument : with->arguments) {
    text += argument.is_setting ? argument_item(argument) : "";
  }
  return text;
}

}  // namespace

std::string command_page(const CommandText& program, const std::string& date) {
  std::string text = title("GRADSYNCD", 1, date, "User Commands");
  text += ".SH NAME\ngradsyncd \\- node\\-local sidecar that syncs, measures and clips gradients\n";
  text += ".SH SYNOPSIS\n.B gradsyncd\n.I COMMAND\n.RI [ OPTIONS ]\n.SH DESCRIPTION\n";
  text += kDescription;
  text += ".SH OPTIONS\nThese are options of each command, too.\n";
  for (const ArgumentText& argument : program.arguments) {
    text += argument_item(argument);
  }
  text += ".SH COMMANDS\n";
  for (const CommandText& command : program.commands) {
    text += command_section(command, program.name);
  }
  text += settings_section(program) + ".SH EXIT STATUS\n";
  for (const ExitCodeText& row : kExitCodeTexts) {
    text += fmt::format(".TP\n.B {}\n{}\n", static_cast<int>(row.code), roff(row.meaning));
  }
  text += ".PP\n\\fBrun\\fR ends as its command does, with 126 or 127 where that cannot be started.\n";
  return text + kEnvironment + ".SH EXAMPLES\n" + footer_text(program.footer, true) + kFiles;
}

std::string settings_page(const Options& defaults, const std::string& date) {
  std::string text = title("GRADSYNCD.TOML", 5, date, "File Formats");
  text += ".SH NAME\ngradsyncd.toml \\- settings of gradsyncd\n.SH SYNOPSIS\n.I /etc/gradsync/gradsyncd.toml\n";
  text += kSettingsDescription;
  std::string_view current;
  for_each_field(
      defaults,
      [&](std::string_view section, std::string_view key, const auto& field, const FieldRule& rule) {
        if (section != current) {
          text += fmt::format(".SS [{}]\n", section);
          current = section;
        }
        text += fmt::format(
            ".TP\n\\fB{}\\fR = \\fI{}\\fR\n{}\n.br\nDefault {}; flag {}, environment {}.\n",
            key,
            roff(value_name(field, rule)),
            roff(rule.doc),
            roff(toml_text(field)),
            roff(flag_name(section, key)),
            environment_name(section, key)
        );
      }
  );
  return text + ".SH SEE ALSO\n.BR gradsyncd (1)\n";
}

}  // namespace gradsync::app
