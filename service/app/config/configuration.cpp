#include "app/config/configuration.hpp"

#include "app/config/configuration_file.hpp"
#include "app/config/option_text.hpp"
#include "base/text/text.hpp"
#include "rpc/json/plain_text.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>
#include <vector>

namespace gradsync::app {

namespace {

std::string upper(std::string_view text) {
  std::string result{text};
  for (char& c : result) {
    c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return result;
}

Error bad_value(std::string key, const std::string& where, const std::string& value, const std::string& expected) {
  return invalid_params(
      key,
      fmt::format("{}: {} = {} is not usable: {}", where, key, rpc::quote_escaped(value), expected),
      "`gradsyncd config show` prints every setting with its meaning"
  );
}

/// Variables that belong to clients, tests and tools, not to a section of the file.
bool is_foreign(const std::string& name) {
  constexpr std::array kForeign{
      "GRADSYNC_ADDRESS",
      "GRADSYNC_MODE",
      "GRADSYNC_CONFIG",
      "GRADSYNC_KERNELS",
      "GRADSYNC_LIBCUDA",
      "GRADSYNC_TOKEN_FILE",
      "GRADSYNC_CA_FILE"};
  return std::find(kForeign.begin(), kForeign.end(), name) != kForeign.end();
}

/// A variable that starts like a section, or ends like a key, must be a setting: a slip would silently do nothing.
std::optional<Error> unknown_variable(const Environment& environment) {
  Options options;
  std::vector<std::string> names;
  std::vector<std::string> sections;
  std::vector<std::string> keys;
  for_each_field(options, [&](std::string_view section, std::string_view key, auto&, const FieldRule&) {
    names.push_back(environment_name(section, key));
    sections.push_back("GRADSYNC_" + upper(section) + "_");
    keys.push_back("_" + upper(key));
  });
  for (const auto& [name, value] : environment) {
    if (!name.starts_with("GRADSYNC_") || is_foreign(name) ||
        std::find(names.begin(), names.end(), name) != names.end()) {
      continue;
    }
    const std::string nearest = nearest_name(name, names);
    const bool of_a_section = std::any_of(sections.begin(), sections.end(), [&](const std::string& prefix) {
      return name.starts_with(prefix);
    });
    const bool of_a_key =
        std::any_of(keys.begin(), keys.end(), [&](const std::string& suffix) { return name.ends_with(suffix); });
    if (of_a_section || (of_a_key && !nearest.empty())) {
      return invalid_params(
          name,
          fmt::format("environment variable {} is not a setting", name),
          nearest.empty() ? "`gradsyncd config show` prints every setting" : fmt::format("did you mean {}?", nearest)
      );
    }
  }
  return std::nullopt;
}

Error needs_token(
    const Configuration& configuration,
    const std::string& key,
    const std::string& address,
    const std::string& token_key,
    const char* hint
) {
  return invalid_params(
      token_key, fmt::format("{}: {} = '{}' needs {}", configuration.origins.at(key), key, address, token_key), hint
  );
}

/// Checks that need more than one field.
std::optional<Error> check_together(Configuration& configuration) {
  ServerSection& server = configuration.options.server;
  PeerSection& peer = configuration.options.peer;
  for (std::string* address : {&server.health, &server.tcp, &peer.listen}) {
    if (*address == "off") {
      address->clear();
    }
  }
  if (!server.socket.ends_with(".sock")) {
    return bad_value(
        "server.socket", configuration.origins.at("server.socket"), server.socket, "expected a path that ends in .sock"
    );
  }
  const char* hint =
      "make one with `gradsyncd token new --out FILE` and name the file there, or in server.tcp_read_token_file for "
      "clients that only read";
  if (!server.tcp.empty() && server.tcp_token_file.empty() && server.tcp_read_token_file.empty()) {
    return needs_token(configuration, "server.tcp", server.tcp, "server.tcp_token_file", hint);
  }
  hint = "make one with `gradsyncd token new --out FILE`, copy it to every node, and name the file there";
  if (!peer.listen.empty() && peer.token_file.empty()) {
    return needs_token(configuration, "peer.listen", peer.listen, "peer.token_file", hint);
  }
  const NcclSection& nccl = configuration.options.nccl;
  if (nccl.cpu_gradients == "nccl" && (nccl.library.empty() || nccl.library == "off")) {
    return bad_value(
        "nccl.cpu_gradients",
        configuration.origins.at("nccl.cpu_gradients"),
        nccl.cpu_gradients,
        "expected sockets, or a library in nccl.library that has NCCL's interface and adds up memory of CPUs"
    );
  }
  constexpr std::size_t kLongestName = 64;
  if (peer.node.size() > kLongestName) {
    return bad_value("peer.node", configuration.origins.at("peer.node"), peer.node, "expected at most 64 bytes");
  }
  return std::nullopt;
}

}  // namespace

Environment process_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text{*entry};
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return environment;
}

std::string flag_name(std::string_view section, std::string_view key) {
  std::string name = fmt::format("--{}-{}", section, key);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string environment_name(std::string_view section, std::string_view key) {
  return fmt::format("GRADSYNC_{}_{}", upper(section), upper(key));
}

std::optional<std::string> default_configuration_file(const Environment& environment) {
  const auto named = environment.find("GRADSYNC_CONFIG");
  if (named != environment.end() && !named->second.empty()) {
    return named->second;
  }
  const std::string usual = "/etc/gradsync/gradsyncd.toml";
  return std::filesystem::exists(usual) ? std::optional(usual) : std::nullopt;
}

namespace {

struct SettingText {
  std::string text;
  std::string from;
};

/// The texts that override the file for a setting; the last one counts, and all are checked.
std::vector<SettingText> texts_outside_file(
    const ConfigurationInputs& inputs, std::string_view section, std::string_view key
) {
  std::vector<SettingText> texts;
  const auto variable = inputs.environment.find(environment_name(section, key));
  if (variable != inputs.environment.end()) {
    texts.push_back({variable->second, "environment " + variable->first});
  }
  const auto flag = inputs.flags.find(fmt::format("{}.{}", section, key));
  if (flag != inputs.flags.end()) {
    texts.push_back({flag->second, "flag " + flag_name(section, key)});
  }
  return texts;
}

}  // namespace

Result<Configuration> resolve_configuration(const ConfigurationInputs& inputs) {
  Configuration configuration;
  configuration.options.server.socket = inputs.socket;
  if (auto error = unknown_variable(inputs.environment)) {
    return *error;
  }
  std::map<std::string, std::string> file_origins;
  if (inputs.file) {
    Result<std::map<std::string, std::string>> read = read_configuration_file(*inputs.file, configuration.options);
    if (read.has_error()) {
      return read.error();
    }
    file_origins = *read;
  }
  std::optional<Error> failure;
  for_each_field(
      configuration.options,
      [&](std::string_view section, std::string_view key, auto& field, const FieldRule& rule) {
        const std::string name = fmt::format("{}.{}", section, key);
        const auto in_file = file_origins.find(name);
        std::string origin = in_file == file_origins.end() ? "default" : in_file->second;
        for (auto& [text, from] : texts_outside_file(inputs, section, key)) {
          origin = std::move(from);
          if (const auto expected = set_from_text(field, text, rule); expected && !failure) {
            failure = bad_value(name, origin, text, *expected);
          }
        }
        configuration.origins.emplace(name, std::move(origin));
      }
  );
  if (!failure) {
    failure = check_together(configuration);
  }
  if (failure) {
    return *failure;
  }
  return configuration;
}

std::string print_configuration(const Configuration& configuration, bool with_origins) {
  std::string text =
      "# Settings of gradsyncd. A flag (--section-key) overrides the environment (GRADSYNC_SECTION_KEY), which\n# "
      "overrides this file.\n";
  std::string_view current;
  for_each_field(
      configuration.options,
      [&](std::string_view section, std::string_view key, const auto& field, const FieldRule& rule) {
        if (section != current) {
          text += fmt::format("\n[{}]\n", section);
          current = section;
        }
        std::string line = fmt::format("{} = {}", key, toml_text(field));
        if (with_origins) {
          line = fmt::format("{:<48} # {}", line, configuration.origins.at(fmt::format("{}.{}", section, key)));
        } else {
          text += fmt::format("# {}\n", rule.doc);
        }
        text += line + "\n";
      }
  );
  return text;
}

}  // namespace gradsync::app
