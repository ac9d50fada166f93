#include "app/cli/command_table.hpp"

#include "app/config/configuration.hpp"
#include "app/config/option_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::app {

namespace {

/// One flag per setting; the texts are checked with those of the environment.
void add_settings(CLI::App& command, SettingsSource& settings) {
  command
      .add_option(
          "--config", settings.file, "Configuration file; else $GRADSYNC_CONFIG, else /etc/gradsync/gradsyncd.toml"
      )
      ->type_name("FILE");
  Options defaults;
  for_each_field(defaults, [&](std::string_view section, std::string_view key, auto& field, const FieldRule& rule) {
    const std::string name = fmt::format("{}.{}", section, key);
    std::string flags = flag_name(section, key);
    if (name == "server.socket" || name == "server.health" || name == "server.tcp") {
      flags += fmt::format(",--{}", key);
    }
    command
        .add_option_function<std::string>(
            flags, [&settings, name](const std::string& text) { settings.flags[name] = text; }, std::string(rule.doc)
        )
        ->type_name(value_name(field, rule))
        ->group(fmt::format("[{}]", section));
  });
}

void add_address(CLI::App& command, std::string& address) {
  command
      .add_option(
          "--address",
          address,
          "Socket of the daemon (path or unix:path); else $GRADSYNC_ADDRESS, else the usual places"
      )
      ->type_name("SOCKET");
}

/// CLI11's own check of a set would add the set to the name of the value.
CLI::Validator is_one_of(std::vector<std::string> words) {
  return CLI::Validator(
      [words = std::move(words)](std::string& text) {
        return std::find(words.begin(), words.end(), text) != words.end()
                   ? std::string()
                   : fmt::format("'{}' is not one of {}", text, fmt::join(words, ", "));
      },
      ""
  );
}

void add_serve(CLI::App& serve, Parsed& parsed) {
  serve.footer("\nExample: gradsyncd serve --config /etc/gradsync/gradsyncd.toml");
  add_settings(serve, parsed.serve.settings);
}

void add_run(CLI::App& run, Parsed& parsed) {
  run.footer(
      "\nExample: gradsyncd run -- torchrun --nproc-per-node 2 train.py\n"
      "The command finds the daemon by GRADSYNC_ADDRESS. Signals are passed on to it."
  );
  add_settings(run, parsed.run.settings);
}

void add_check_config(CLI::App& check, Parsed& parsed) {
  check.add_option("file", parsed.check_file, "Configuration file")->type_name("FILE");
  check.footer("\nExample: gradsyncd check-config /etc/gradsync/gradsyncd.toml");
  add_settings(check, parsed.check.settings);
}

/// `config`, `plan`, `policy`, `blackbox` and `token` are the names of groups: what they do is in their subcommands.
void add_group(CLI::App& group, Parsed& /*parsed*/) { group.require_subcommand(1); }

void add_config_show(CLI::App& show, Parsed& parsed) {
  show.add_flag("--origin", parsed.show.origin, "Say where each value came from");
  show.footer("\nExample: gradsyncd config show --origin");
  add_settings(show, parsed.show.settings);
}

void add_status(CLI::App& status, Parsed& parsed) {
  status.add_flag(
      "--watch",
      parsed.status.watch,
      "Again every second, until interrupted; `gradsync status --watch` draws norms over time, too"
  );
  status.add_flag("--json", parsed.status.json, "The result of status.get");
  status.footer("\nExample: gradsyncd status --address unix:/run/gradsync/gradsync.sock");
  add_address(status, parsed.status.address);
}

void add_rpc(CLI::App& rpc, Parsed& parsed) {
  rpc.add_option("method", parsed.rpc.method, "Method, like status.get")->required();
  rpc.add_option("params", parsed.rpc.params, "Params as a JSON object");
  rpc.footer("\nExample: gradsyncd rpc log.set_level '{\"level\": \"debug\"}'");
  add_address(rpc, parsed.rpc.address);
}

void add_plan_check(CLI::App& check, Parsed& parsed) {
  check.add_option("file", parsed.plan_check.file, "JSON lines: the head, then one line per rank; - reads stdin")
      ->required()
      ->type_name("FILE");
  check.add_flag(
      "--explain", parsed.plan_check.explain, "Say of every tensor which ranks hold it and how it is counted"
  );
  check.add_flag("--json", parsed.plan_check.json, "As JSON");
  check.footer(
      "\nExample: gradsyncd plan check job.jsonl\n"
      "Head: {\"gradsync_declaration\": 1, \"world_size\": 2, \"meshes\": [...], \"options\": {...}}\n"
      "Then: {\"rank\": 0, \"tensors\": [...]}, all as gradients.declare takes them.\n"
      "The plan is the one of a daemon with the same settings: of data path arena its digest depends on bucket sizes."
  );
  add_settings(check, parsed.plan_check.settings);
}

void add_policy_replay(CLI::App& replay, Parsed& parsed) {
  replay.add_option("trace", parsed.replay.file, "JSON lines with the norm of each step; - reads stdin")
      ->required()
      ->type_name("FILE");
  replay
      .add_option(
          "--policy",
          parsed.replay.policies,
          "fixed, observe, percentile, auto or zscore, with settings: percentile:percentile=90,window=500. More than "
          "one is possible"
      )
      ->required()
      ->take_all();
  replay.add_option("--key", parsed.replay.key, "Key of the norm in a line; else norm, or grad_norm");
  replay.add_option("--group", parsed.replay.clip_group, "Lines are reports of steps: the norm of this clip group");
  replay.add_option("--plot", parsed.replay.plot, "Write a picture of norms, thresholds and clips (SVG)")
      ->type_name("FILE");
  replay.add_flag("--json", parsed.replay.json, "A line for each step instead of a summary");
  replay.footer(
      "\nExample: gradsyncd policy replay run.jsonl --policy percentile --policy zscore:z=3,max_norm=none --plot "
      "run.svg\n"
      "Settings of all: max_norm (1 unless given, none), mode, nonfinite, spike, spike_factor, zero_rule;\n"
      "of percentile and auto: percentile, window, warmup; of zscore: z, alpha, warmup."
  );
}

void add_dumps(CLI::App& command, std::vector<std::string>& files, std::string& job) {
  command.add_option("files", files, "Dumps of the flight recorder, of all nodes of a job")
      ->required()
      ->type_name("FILE");
  command.add_option("--job", job, "The job, where the files are of several");
}

void add_blackbox_analyze(CLI::App& analyze, Parsed& parsed) {
  add_dumps(analyze, parsed.analyze.files, parsed.analyze.job);
  analyze.add_flag("--json", parsed.analyze.json, "As JSON");
  analyze.footer(
      "\nExample: gradsyncd blackbox analyze node-*/*.jsonl\n"
      "Daemons write dumps when a step fails, for SIGUSR1, and for `gradsyncd rpc blackbox.dump`. Of each node the "
      "newest counts."
  );
}

void add_blackbox_trace(CLI::App& trace, Parsed& parsed) {
  add_dumps(trace, parsed.trace.files, parsed.trace.job);
  trace.footer(
      "\nExample: gradsyncd blackbox trace node-*/*.jsonl > trace.json\n"
      "https://ui.perfetto.dev and chrome://tracing show it."
  );
}

void add_live_trace(CLI::App& trace, Parsed& parsed) {
  trace.add_option("--job", parsed.live_trace.job, "The job, where the daemon has several");
  trace.add_option("--last", parsed.live_trace.last, "Steps, 100 unless given; the recorder has at most 512")
      ->type_name("N")
      ->check(CLI::Range(1, 512).description(""));
  trace.add_option("-o,--out", parsed.live_trace.out, "File to write; else standard output")->type_name("FILE");
  trace.footer(
      "\nExample: gradsyncd trace --last 20 -o trace.json\n"
      "https://ui.perfetto.dev and chrome://tracing show it. For the daemon's user and root, on its machine. Traces of "
      "several nodes are made of their dumps: gradsyncd blackbox trace."
  );
  add_address(trace, parsed.live_trace.address);
}

void add_version(CLI::App& version, Parsed& parsed) {
  version.add_flag("--json", parsed.version.json, "As JSON");
  version.footer("\nExample: gradsyncd version --json");
}

void add_bench(CLI::App& bench, Parsed& parsed) {
  bench.add_option("--address", parsed.bench.address, "Socket of a daemon to measure; else a private one")
      ->type_name("SOCKET");
  bench.add_option("--megabytes", parsed.bench.megabytes, "MiB of gradients of a rank, 64 unless given")
      ->type_name("N")
      ->check(CLI::Range(1, 1024).description(""));
  bench.add_option("--rounds", parsed.bench.rounds, "Rounds of each part, 12 unless given")
      ->type_name("N")
      ->check(CLI::Range(1, 1000).description(""));
  bench.add_flag("--json", parsed.bench.json, "As JSON");
  bench.footer(
      "\nExample: gradsyncd bench\n"
      "It becomes `gradsync bench`, which has to be in PATH (pip install gradsync). That takes some ten seconds, two "
      "cores "
      "and memory: not beside a training whose speed matters. The exit code is 1 where a figure is above its bound."
  );
}

void add_doctor(CLI::App& doctor, Parsed& parsed) {
  doctor.add_flag("--json", parsed.doctor.json, "As JSON: a list of level, what and hint");
  doctor.add_option("--fd", parsed.doctor.fd, "Descriptor for the JSON, of a daemon that starts it")->group("");
  doctor.footer(
      "\nExample: gradsyncd doctor\n"
      "Run it where the daemon runs, with the daemon's configuration. The exit code is 1 where something will not work."
  );
  add_settings(doctor, parsed.doctor.settings);
}

void add_explain(CLI::App& explain, Parsed& parsed) {
  explain.add_option(
      "kind", parsed.explain.kind, "Kind of an error, like rank_lost; all kinds are listed unless given"
  );
  explain.footer("\nExample: gradsyncd explain rank_lost");
}

void add_token_new(CLI::App& token, Parsed& parsed) {
  token.add_option("--out", parsed.token.out, "File to write, of mode 0600; else standard output")->type_name("FILE");
  token.add_flag("--force", parsed.token.force, "Replace a file that is there");
  token.footer(
      "\nExample: gradsyncd token new --out /etc/gradsync/tcp-token\n"
      "For server.tcp_token_file, server.tcp_read_token_file or peer.token_file. A daemon reads the first two again "
      "when "
      "they change."
  );
}

void add_completion(CLI::App& completion, Parsed& parsed) {
  completion.add_option("shell", parsed.completion.shell, "The shell")
      ->required()
      ->type_name("bash|zsh")
      ->check(is_one_of({"bash", "zsh"}));
  completion.footer(
      "\nExample: source <(gradsyncd completion bash)\n"
      "The Debian package installs both. For zsh, write it as _gradsyncd into a folder of fpath."
  );
}

void add_man(CLI::App& man, Parsed& parsed) {
  man.add_option("page", parsed.man.page, "The page; gradsyncd unless given")
      ->type_name("gradsyncd|gradsyncd.toml")
      ->check(is_one_of({"gradsyncd", "gradsyncd.toml"}));
  man.footer("\nExample: gradsyncd man gradsyncd.toml | man -l -");
}

void add_worker(CLI::App& worker, Parsed& parsed) {
  worker.group("");  // not in the list of commands
  worker.add_option("--fd", parsed.worker.fd, "Descriptor of the socket");
  worker.add_option("--kernels", parsed.worker.kernels, "Path of libgradsync_kernels.so: work on a GPU");
  worker.add_option("--gpu", parsed.worker.gpu, "UUID of the GPU, GPU-...; empty: the first one");
  worker.add_flag("--lend", parsed.worker.lend, "Lend memory of the GPU, which a doctor has workers map");
  worker.add_option("--threads", parsed.worker.threads, "Threads that work; 0: as many as there are CPUs");
  NcclSection& nccl = parsed.worker.nccl;
  worker.add_option("--nccl", nccl.library, "Library by which sums of several nodes travel; empty: none");
  worker.add_option("--nccl-max-ctas", nccl.max_ctas, "As max_ctas of [nccl]");
  worker.add_option("--nccl-cga-cluster", nccl.cga_cluster, "As cga_cluster of [nccl]");
  worker.add_option("--nccl-traffic-class", nccl.traffic_class, "As traffic_class of [nccl]");
  worker.add_option("--nccl-init-ms", nccl.init_ms, "As init_ms of [nccl]");
  worker.add_option("--nccl-abort-ms", nccl.abort_ms, "As abort_ms of [nccl]");
}

Command take_check_config(const Parsed& parsed) {
  CheckConfigCommand check = parsed.check;
  if (!parsed.check_file.empty()) {
    check.settings.file = parsed.check_file;
  }
  return check;
}

template <auto member>
Command take(const Parsed& parsed) {
  return parsed.*member;
}

constexpr CommandRow kCommandRows[] = {
    {"",
     "serve",
     "Serve trainers until SIGTERM, which drains; a second one stops at once",
     add_serve,
     take<&Parsed::serve>},
    {"", "run", "Run a command beside a private daemon and return its exit code", add_run, take<&Parsed::run>},
    {"", "check-config", "Check a configuration, and say nothing but ok", add_check_config, take_check_config},
    {"", "config", "The effective configuration", add_group, nullptr},
    {"config", "show", "Print it as a file that can be used as one", add_config_show, take<&Parsed::show>},
    {"", "status", "Show jobs, ranks and what they wait for", add_status, take<&Parsed::status>},
    {"", "rpc", "Call a method that needs no session", add_rpc, take<&Parsed::rpc>},
    {"", "plan", "What a job's declarations come down to", add_group, nullptr},
    {"plan",
     "check",
     "Check the declarations of all ranks, offline; exit code 1 and the reason if refused",
     add_plan_check,
     take<&Parsed::plan_check>},
    {"", "policy", "Policies of clipping", add_group, nullptr},
    {"policy",
     "replay",
     "Say what policies would have done with the norms of a run",
     add_policy_replay,
     take<&Parsed::replay>},
    {"", "blackbox", "What the flight recorder of a daemon has kept", add_group, nullptr},
    {"blackbox",
     "analyze",
     "Name the rank, node, link or bucket that a training waited for",
     add_blackbox_analyze,
     take<&Parsed::analyze>},
    {"blackbox", "trace", "Print dumps as a Chrome trace", add_blackbox_trace, take<&Parsed::trace>},
    {"", "trace", "Print the last steps of a running job as a Chrome trace", add_live_trace, take<&Parsed::live_trace>},
    {"",
     "doctor",
     "Look for what would keep gradients from being served here, and say what to do",
     add_doctor,
     take<&Parsed::doctor>},
    {"",
     "bench",
     "Measure what steps take on this node, beside the least that its memory and its sockets allow",
     add_bench,
     take<&Parsed::bench>},
    {"", "explain", "Say what a kind of error means, and what to do", add_explain, take<&Parsed::explain>},
    {"", "token", "Tokens of those who come over TCP", add_group, nullptr},
    {"token", "new", "Make one of 256 random bits", add_token_new, take<&Parsed::token>},
    {"", "version", "Print the version", add_version, take<&Parsed::version>},
    {"", "completion", "Print a script that completes gradsyncd in a shell", add_completion, take<&Parsed::completion>},
    {"", "man", "Print a manual page", add_man, take<&Parsed::man>},
    {"",
     "worker",
     "Execute what a daemon sends over a socket; started by the daemon",
     add_worker,
     take<&Parsed::worker>},
};

}  // namespace

std::span<const CommandRow> command_rows() { return kCommandRows; }

}  // namespace gradsync::app
