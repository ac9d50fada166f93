#include "app/config/configuration_file.hpp"

#include "app/config/option_text.hpp"
#include "base/text/text.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace gradsync::app {

namespace {

// value_exact: `value` would take 5.0 and true for an integer.
std::optional<std::string> set_from_node(std::string& field, const toml::node& node, const FieldRule& rule) {
  const auto value = node.value_exact<std::string>();
  if (!value) {
    return "expected a string";
  }
  field = *value;
  return check(field, rule);
}

std::optional<std::string> set_from_node(std::int64_t& field, const toml::node& node, const FieldRule& rule) {
  const auto value = node.value_exact<std::int64_t>();
  if (!value) {
    return "expected an integer";
  }
  field = *value;
  return check(field, rule);
}

std::optional<std::string> set_from_node(FileMode& field, const toml::node& node, const FieldRule& rule) {
  if (const auto text = node.value_exact<std::string>()) {
    return set_from_text(field, *text, rule);
  }
  const auto value = node.value_exact<std::int64_t>();
  // A plain 660 is a slip for 0o660: as a decimal number it would be mode 01224.
  if (!value || *value < 0 || *value > 0777 ||
      (node.as_integer()->flags() & toml::value_flags::format_as_octal) == toml::value_flags::none) {
    return "expected an octal mode like 0o660";
  }
  field.value = static_cast<std::uint32_t>(*value);
  return check(field, rule);
}

std::optional<std::string> set_from_node(
    std::vector<std::int64_t>& field, const toml::node& node, const FieldRule& rule
) {
  const toml::array* array = node.as_array();
  if (array == nullptr) {
    return "expected an array of integers";
  }
  field.clear();
  for (const toml::node& element : *array) {
    const auto value = element.value_exact<std::int64_t>();
    if (!value) {
      return "expected an array of integers";
    }
    field.push_back(*value);
  }
  return check(field, rule);
}

std::string place(const std::string& path, const toml::source_region& source) {
  return fmt::format("{}:{}", path, source.begin.line);
}

std::string printed(const toml::node& node) {
  std::ostringstream text;
  node.visit([&](const auto& value) { text << value; });
  return text.str();
}

Error unknown(const std::string& where, const std::string& what, const std::string& name, const std::string& nearest) {
  return invalid_params(
      name,
      fmt::format("{}: {} '{}' is unknown", where, what, name),
      nearest.empty() ? "`gradsyncd config show` prints every setting" : fmt::format("did you mean '{}'?", nearest)
  );
}

/// Sections and keys that exist nowhere.
std::optional<Error> find_unknown(const std::string& path, const toml::table& root) {
  std::map<std::string, std::vector<std::string>> known;
  Options options;
  for_each_field(options, [&](std::string_view section, std::string_view key, auto&, const FieldRule&) {
    known[std::string(section)].emplace_back(key);
  });
  std::vector<std::string> sections;
  for (const auto& [section, keys] : known) {
    sections.push_back(section);
  }
  for (const auto& [name_key, node] : root) {
    const std::string name{name_key.str()};
    const auto section = known.find(name);
    if (section == known.end()) {
      return unknown(
          place(path, name_key.source()),
          node.is_table() ? "section" : "key outside of a section",
          name,
          nearest_name(name, sections)
      );
    }
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      return invalid_params(
          name,
          fmt::format("{}: '{}' must be a section", place(path, name_key.source()), name),
          fmt::format("write [{}]", name)
      );
    }
    for (const auto& [key, value] : *table) {
      const std::string key_name{key.str()};
      if (std::find(section->second.begin(), section->second.end(), key_name) == section->second.end()) {
        return unknown(
            place(path, key.source()),
            "key",
            fmt::format("{}.{}", name, key_name),
            nearest_name(key_name, section->second)
        );
      }
    }
  }
  return std::nullopt;
}

}  // namespace

Result<std::map<std::string, std::string>> read_configuration_file(const std::string& path, Options& options) {
  std::ifstream stream{path};
  std::stringstream text;
  text << stream.rdbuf();
  if (!stream) {
    return invalid_params(
        "config", fmt::format("cannot read the configuration file '{}'", path), "check the path and its mode"
    );
  }
  return read_configuration_text(text.str(), path, options);
}

Result<std::map<std::string, std::string>> read_configuration_text(
    const std::string& text, const std::string& path, Options& options
) {
  toml::table root;
  try {
    root = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    return invalid_params(
        "config",
        fmt::format("{}: not valid TOML: {}", place(path, error.source()), error.description()),
        "https://toml.io has the syntax"
    );
  }
  if (auto error = find_unknown(path, root)) {
    return *error;
  }
  std::map<std::string, std::string> origins;
  std::optional<Error> failure;
  for_each_field(options, [&](std::string_view section, std::string_view key, auto& field, const FieldRule& rule) {
    const toml::node* node = root[section][key].node();
    if (node == nullptr || failure) {
      return;
    }
    const std::string name = fmt::format("{}.{}", section, key);
    const std::string where = place(path, node->source());
    if (const auto expected = set_from_node(field, *node, rule)) {
      failure = invalid_params(
          name,
          fmt::format("{}: {} = {} is not usable: {}", where, name, printed(*node), *expected),
          "`gradsyncd config show` prints every setting with its meaning"
      );
      return;
    }
    origins.emplace(name, "file " + where);
  });
  if (failure) {
    return *failure;
  }
  return origins;
}

}  // namespace gradsync::app
