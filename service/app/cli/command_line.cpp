#include "app/cli/command_line.hpp"

#include "app/cli/command_table.hpp"
#include "app/cli/exit_code.hpp"
#include "base/assert.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <utility>
#include <vector>

namespace gradsync::app {

namespace {

constexpr const char* kSummary = "Node-local sidecar that syncs, measures and clips gradients.";
constexpr const char* kExamples = R"(
Examples:
  gradsyncd run -- torchrun --nproc-per-node 2 train.py   a private daemon beside one training
  gradsyncd serve                                         the daemon of this machine
  gradsyncd serve --socket /tmp/g/gradsync.sock --health off --log-level debug
  gradsyncd config show --origin                          every setting and where it came from
  gradsyncd status --watch                                jobs, ranks, norms
  gradsyncd policy replay run.jsonl --policy percentile   what adaptive clipping would have done with a recorded run
  gradsyncd blackbox analyze *.jsonl                      which rank, node or link a training waited for
  gradsyncd trace -o trace.json                           the last steps, for https://ui.perfetto.dev
  gradsyncd rpc stats.get '{"job": "llm", "last": 3}'     any method that needs no session

Settings come from flags, then the environment (GRADSYNC_SECTION_KEY), then the file, then defaults.
)";

std::string footer_of_program() {
  std::vector<std::string> codes;
  for (const ExitCodeText& row : kExitCodeTexts) {
    codes.push_back(fmt::format("{} {}", static_cast<int>(row.code), row.meaning));
  }
  return fmt::format("{}Exit codes: {}.\n", kExamples, fmt::join(codes, ", "));
}

int usage(const std::string& message, const std::string& hint) {
  std::cerr << "gradsyncd: " << message << "\n  " << hint << "\n";
  return kExitUsage;
}

void add_commands(CLI::App& app, Parsed& parsed) {
  app.footer(footer_of_program());
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every command");
  app.set_version_flag("--version", "", "Print the version");
  for (const CommandRow& row : command_rows()) {
    CLI::App* const parent = *row.group == '\0' ? &app : app.get_subcommand(row.group);
    row.add_options(*parent->add_subcommand(row.name, row.summary), parsed);
  }
}

ArgumentText describe_argument(const CLI::Option& option) {
  ArgumentText argument;
  for (const std::string& letter : option.get_snames()) {
    argument.names.push_back("-" + letter);
  }
  for (const std::string& word : option.get_lnames()) {
    argument.names.push_back("--" + word);
  }
  if (option.get_positional()) {
    argument.names = {option.get_name(true)};
  }
  argument.value = option.get_items_expected_max() == 0 ? "" : option.get_type_name();
  argument.doc = option.get_description();
  argument.is_setting = option.get_group().starts_with('[');
  argument.is_repeated = option.get_items_expected_max() > 1;
  return argument;
}

/// Hidden commands and options are left out.
CommandText describe_command(const CLI::App& app) {
  CommandText command;
  command.name = app.get_name();
  command.summary = app.get_description();
  command.footer = app.get_footer();
  for (const CLI::Option* option :
       app.get_options([](const CLI::Option* each) { return !each->get_group().empty(); })) {
    command.arguments.push_back(describe_argument(*option));
  }
  for (const CLI::App* child : app.get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); })) {
    command.commands.push_back(describe_command(*child));
  }
  command.runs_another = command.name == "run";
  return command;
}

/// A command of `app` that was parsed, of those that do something.
const CommandRow* parsed_row(const CLI::App& app) {
  for (const CommandRow& row : command_rows()) {
    const CLI::App* const parent = *row.group == '\0' ? &app : app.get_subcommand(row.group);
    if (row.take != nullptr && parent->get_subcommand(row.name)->parsed()) {
      return &row;
    }
  }
  return nullptr;
}

/// Reads what is before `--`; what is done instead where --help, --version or a mistake leave nothing to do.
std::optional<std::variant<Command, int>> parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    app.exit(help);
    return kExitOk;
  } catch (const CLI::CallForAllHelp& help) {
    app.exit(help);
    return kExitOk;
  } catch (const CLI::CallForVersion&) {
    return VersionCommand{};
  } catch (const CLI::ParseError& error) {
    return usage(error.what(), "gradsyncd --help lists commands and flags");
  }
  return std::nullopt;
}

}  // namespace

CommandText describe_command_line() {
  Parsed parsed;
  CLI::App app{kSummary, "gradsyncd"};
  add_commands(app, parsed);
  return describe_command(app);
}

std::variant<Command, int> parse_command_line(int argc, const char* const* argv) {
  Parsed parsed;
  CLI::App app{kSummary, "gradsyncd"};
  add_commands(app, parsed);

  // Everything after `--` belongs to the child of `run`, also its flags.
  const char* const* const end = argv + argc;
  const char* const* const separator =
      std::find_if(argv, end, [](const char* text) { return std::string_view{text} == "--"; });
  if (auto instead = parse(app, static_cast<int>(separator - argv), argv)) {
    return *std::move(instead);
  }
  const bool runs = app.got_subcommand("run");
  if (separator != end && !runs) {
    return usage("'--' is only for `gradsyncd run`", "example: gradsyncd run -- python train.py");
  }
  if (runs && end - separator < 2) {
    return usage("`run` needs a command after '--'", "example: gradsyncd run -- torchrun --nproc-per-node 2 train.py");
  }
  if (runs) {
    parsed.run.command.assign(separator + 1, end);
  }
  const CommandRow* const row = parsed_row(app);
  GRADSYNC_ASSERT(row != nullptr, "one command is required, and a group requires one of its own");
  return row->take(parsed);
}

}  // namespace gradsync::app
