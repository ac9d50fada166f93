#include "app/command_line.hpp"

#include "app/configuration.hpp"
#include "app/exit_code.hpp"
#include "app/option_text.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <iostream>

namespace gradsync::app {

namespace {

constexpr const char* kExamples = R"(
Examples:
  gradsyncd run -- torchrun --nproc-per-node 2 train.py   a private daemon beside one training
  gradsyncd serve                                         the daemon of this machine
  gradsyncd serve --socket /tmp/g/gradsync.sock --health off --log-level debug
  gradsyncd config show --origin                          every setting and where it came from
  gradsyncd status --watch                                jobs, ranks, norms
  gradsyncd policy replay run.jsonl --policy percentile   what adaptive clipping would have done with a recorded run
  gradsyncd rpc stats.get '{"job": "llm", "last": 3}'     any method that needs no session

Settings come from flags, then the environment (GRADSYNC_SECTION_KEY), then the file, then defaults.
Exit codes: 0 ok, 1 failure, 64 usage, 69 no daemon answers, 70 defect, 75 try again, 78 configuration.
)";

/// One flag per setting; the texts are checked with those of the environment.
void add_settings(CLI::App& command, SettingsSource& settings) {
  command.add_option(
      "--config", settings.file, "Configuration file; else $GRADSYNC_CONFIG, else /etc/gradsync/gradsyncd.toml"
  );
  Options defaults;
  for_each_field(defaults, [&](std::string_view section, std::string_view key, auto&, const FieldRule& rule) {
    const std::string name = fmt::format("{}.{}", section, key);
    std::string flags = flag_name(section, key);
    if (name == "server.socket" || name == "server.health" || name == "server.tcp") {
      flags += fmt::format(",--{}", key);
    }
    command
        .add_option_function<std::string>(
            flags, [&settings, name](const std::string& text) { settings.flags[name] = text; }, std::string(rule.doc)
        )
        ->type_name("")
        ->group(fmt::format("[{}]", section));
  });
}

void add_address(CLI::App& command, std::string& address) {
  command.add_option(
      "--address", address, "Socket of the daemon (path or unix:path); else $GRADSYNC_ADDRESS, else the usual places"
  );
}

struct Parsed {
  ServeCommand serve;
  RunCommand run;
  CheckConfigCommand check;
  std::string check_file;
  ConfigShowCommand show;
  StatusCommand status;
  RpcCommand rpc;
  PlanCheckCommand plan_check;
  PolicyReplayCommand replay;
  VersionCommand version;
};

int usage(const std::string& message, const std::string& hint) {
  std::cerr << "gradsyncd: " << message << "\n  " << hint << "\n";
  return kExitUsage;
}

}  // namespace

std::variant<Command, int> parse_command_line(int argc, const char* const* argv) {
  // What follows `--` belongs to the child of `run`, flags and all.
  const char* const* const end = argv + argc;
  const char* const* const separator =
      std::find_if(argv, end, [](const char* text) { return std::string_view{text} == "--"; });

  Parsed parsed;
  CLI::App app{"Node-local sidecar that syncs, measures and clips gradients.", "gradsyncd"};
  app.footer(kExamples);
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every command");

  CLI::App* serve =
      app.add_subcommand("serve", "Serve trainers until SIGTERM, which drains; a second one stops at once");
  serve->footer("\nExample: gradsyncd serve --config /etc/gradsync/gradsyncd.toml");
  add_settings(*serve, parsed.serve.settings);

  CLI::App* run = app.add_subcommand("run", "Run a command beside a private daemon and return its exit code");
  run->footer(
      "\nExample: gradsyncd run -- torchrun --nproc-per-node 2 train.py\n"
      "The command finds the daemon by GRADSYNC_ADDRESS. Signals are passed on to it."
  );
  add_settings(*run, parsed.run.settings);

  CLI::App* check = app.add_subcommand("check-config", "Check a configuration, and say nothing but ok");
  check->add_option("file", parsed.check_file, "Configuration file");
  check->footer("\nExample: gradsyncd check-config deploy/config/gradsyncd.toml");
  add_settings(*check, parsed.check.settings);

  CLI::App* config = app.add_subcommand("config", "The effective configuration");
  config->require_subcommand(1);
  CLI::App* show = config->add_subcommand("show", "Print it as a file that can be used as one");
  show->add_flag("--origin", parsed.show.origin, "Say where each value came from");
  show->footer("\nExample: gradsyncd config show --origin");
  add_settings(*show, parsed.show.settings);

  CLI::App* status = app.add_subcommand("status", "Show jobs, ranks and what they wait for");
  status->add_flag("--watch", parsed.status.watch, "Again every second, until interrupted");
  status->add_flag("--json", parsed.status.json, "The result of status.get");
  status->footer("\nExample: gradsyncd status --address unix:/run/gradsync/gradsync.sock");
  add_address(*status, parsed.status.address);

  CLI::App* rpc = app.add_subcommand("rpc", "Call a method that needs no session");
  rpc->add_option("method", parsed.rpc.method, "Method, like status.get")->required();
  rpc->add_option("params", parsed.rpc.params, "Params as a JSON object");
  rpc->footer("\nExample: gradsyncd rpc log.set_level '{\"level\": \"debug\"}'");
  add_address(*rpc, parsed.rpc.address);

  CLI::App* plan = app.add_subcommand("plan", "What a job's declarations come down to");
  plan->require_subcommand(1);
  CLI::App* plan_check = plan->add_subcommand(
      "check", "Check the declarations of all ranks, offline; exit code 1 and the reason if refused"
  );
  plan_check->add_option("file", parsed.plan_check.file, "JSON lines: the head, then one line per rank; - reads stdin")
      ->required();
  plan_check->add_flag(
      "--explain", parsed.plan_check.explain, "Say of every tensor who holds it and how it is counted"
  );
  plan_check->add_flag("--json", parsed.plan_check.json, "As JSON");
  plan_check->footer(
      "\nExample: gradsyncd plan check job.jsonl\n"
      "Head: {\"gradsync_declaration\": 1, \"world_size\": 2, \"meshes\": [...], \"options\": {...}}\n"
      "Then: {\"rank\": 0, \"tensors\": [...]}, all as gradients.declare takes them.\n"
      "The plan is the one of a daemon with the same settings: of data path arena its digest depends on bucket sizes."
  );
  add_settings(*plan_check, parsed.plan_check.settings);

  CLI::App* policy = app.add_subcommand("policy", "Policies of clipping");
  policy->require_subcommand(1);
  CLI::App* replay = policy->add_subcommand("replay", "Say what policies would have done with the norms of a run");
  replay->add_option("trace", parsed.replay.file, "JSON lines with the norm of each step; - reads stdin")->required();
  replay
      ->add_option(
          "--policy",
          parsed.replay.policies,
          "fixed, observe, percentile or zscore, with settings: percentile:percentile=90,window=500. More than one is "
          "possible"
      )
      ->required()
      ->take_all();
  replay->add_option("--key", parsed.replay.key, "Key of the norm in a line; else norm, or grad_norm");
  replay->add_option("--group", parsed.replay.clip_group, "Lines are reports of steps: the norm of this clip group");
  replay->add_option("--plot", parsed.replay.plot, "Write a picture of norms, thresholds and clips (SVG)");
  replay->add_flag("--json", parsed.replay.json, "A line for each step instead of a summary");
  replay->footer(
      "\nExample: gradsyncd policy replay run.jsonl --policy percentile --policy zscore:z=3,max_norm=none --plot "
      "run.svg\n"
      "Settings of all: max_norm (1 unless given, none), mode, nonfinite, spike, spike_factor, zero_rule;\n"
      "of percentile: percentile, window, warmup; of zscore: z, alpha, warmup."
  );

  CLI::App* version = app.add_subcommand("version", "Print the version");
  version->add_flag("--json", parsed.version.json, "As JSON");
  version->footer("\nExample: gradsyncd version --json");

  try {
    app.parse(static_cast<int>(separator - argv), argv);
  } catch (const CLI::CallForHelp& help) {
    app.exit(help);
    return kExitOk;
  } catch (const CLI::CallForAllHelp& help) {
    app.exit(help);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return usage(error.what(), "gradsyncd --help lists commands and flags");
  }
  if (separator != end && !run->parsed()) {
    return usage("'--' is only for `gradsyncd run`", "example: gradsyncd run -- python train.py");
  }
  if (serve->parsed()) {
    return Command{parsed.serve};
  }
  if (run->parsed()) {
    if (separator == end || separator + 1 == end) {
      return usage(
          "`run` needs a command after '--'", "example: gradsyncd run -- torchrun --nproc-per-node 2 train.py"
      );
    }
    parsed.run.command.assign(separator + 1, end);
    return Command{parsed.run};
  }
  if (check->parsed()) {
    if (!parsed.check_file.empty()) {
      parsed.check.settings.file = parsed.check_file;
    }
    return Command{parsed.check};
  }
  if (show->parsed()) {
    return Command{parsed.show};
  }
  if (status->parsed()) {
    return Command{parsed.status};
  }
  if (rpc->parsed()) {
    return Command{parsed.rpc};
  }
  if (plan_check->parsed()) {
    return Command{parsed.plan_check};
  }
  if (replay->parsed()) {
    return Command{parsed.replay};
  }
  return Command{parsed.version};
}

}  // namespace gradsync::app
