#include "app/config/configuration.hpp"

#include "app/config/private_options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace gradsync::app {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ConfigurationTest : public testing::Test {
 protected:
  ConfigurationTest() {
    std::string name = (std::filesystem::temp_directory_path() / "gradsync-config-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }

  ~ConfigurationTest() override { std::filesystem::remove_all(folder_); }

  void write_file(const std::string& text) {
    inputs.file = folder_ / "gradsyncd.toml";
    std::ofstream{*inputs.file} << text;
  }

  [[nodiscard]] Error error() const {
    const Result<Configuration> resolved = resolve_configuration(inputs);
    EXPECT_TRUE(resolved.has_error());
    return resolved.has_error() ? resolved.error() : Error{};
  }

  [[nodiscard]] Configuration resolved() const {
    Result<Configuration> configuration = resolve_configuration(inputs);
    EXPECT_FALSE(configuration.has_error()) << configuration.error().message;
    return configuration.has_error() ? Configuration{} : *configuration;
  }

  std::filesystem::path folder_;
  ConfigurationInputs inputs;
};

TEST_F(ConfigurationTest, without_anything_every_value_is_its_default) {
  const Configuration configuration = resolved();
  EXPECT_EQ(configuration.options.server.socket, "/run/gradsync/gradsync.sock");
  EXPECT_EQ(configuration.options.server.socket_mode.value, 0660u);
  EXPECT_EQ(configuration.options.deadlines.step_ms, 600'000);
  for (const auto& [key, origin] : configuration.origins) {
    EXPECT_EQ(origin, "default") << key;
  }
}

TEST_F(ConfigurationTest, the_socket_is_where_the_caller_says_unless_a_setting_says_otherwise) {
  inputs.socket = "/run/user/7/gradsync/gradsync.sock";
  EXPECT_EQ(resolved().options.server.socket, "/run/user/7/gradsync/gradsync.sock");
  EXPECT_TRUE(resolved().is_default("server.socket"));
  inputs.flags["server.socket"] = "/tmp/other/gradsync.sock";
  EXPECT_EQ(resolved().options.server.socket, "/tmp/other/gradsync.sock");
}

TEST_F(ConfigurationTest, flag_beats_environment_beats_file_beats_default) {
  write_file("[engine]\nthreads = 2\nhistory = 20\ncheck_every = 7\n");
  inputs.environment["GRADSYNC_ENGINE_THREADS"] = "3";
  inputs.environment["GRADSYNC_ENGINE_HISTORY"] = "30";
  inputs.flags["engine.threads"] = "4";
  const Configuration configuration = resolved();
  EXPECT_EQ(configuration.options.engine.threads, 4);
  EXPECT_EQ(configuration.options.engine.history, 30);
  EXPECT_EQ(configuration.options.engine.check_every, 7);
  EXPECT_EQ(configuration.origins.at("engine.threads"), "flag --engine-threads");
  EXPECT_EQ(configuration.origins.at("engine.history"), "environment GRADSYNC_ENGINE_HISTORY");
  EXPECT_EQ(configuration.origins.at("engine.check_every"), "file " + inputs.file.value() + ":4");
  EXPECT_EQ(configuration.origins.at("engine.bucket_bytes"), "default");
}

TEST_F(ConfigurationTest, an_unknown_key_is_named_with_its_line_and_the_nearest_name) {
  write_file("# settings\n[server]\nsokcet = \"/tmp/x.sock\"\n");
  EXPECT_THAT(error().message, AllOf(HasSubstr("gradsyncd.toml:3"), HasSubstr("'server.sokcet'")));
  EXPECT_EQ(error().hint, "did you mean 'socket'?");
}

TEST_F(ConfigurationTest, an_unknown_section_is_named_with_the_nearest_name) {
  write_file("[deadline]\nstep_ms = 1\n");
  EXPECT_THAT(error().message, AllOf(HasSubstr(":1"), HasSubstr("'deadline'")));
  EXPECT_EQ(error().hint, "did you mean 'deadlines'?");
}

TEST_F(ConfigurationTest, a_key_outside_of_a_section_is_an_error) {
  write_file("threads = 2\n");
  EXPECT_THAT(error().message, HasSubstr("outside of a section"));
}

TEST_F(ConfigurationTest, a_section_that_is_a_value_is_an_error) {
  write_file("engine = 2\n");
  EXPECT_THAT(error().message, HasSubstr("must be a section"));
}

struct BadLine {
  const char* line;
  const char* expected;
};

class BadValue : public ConfigurationTest, public testing::WithParamInterface<BadLine> {};

TEST_P(BadValue, is_named_with_what_was_expected) {
  write_file(GetParam().line);
  EXPECT_THAT(error().message, AllOf(HasSubstr(":2"), HasSubstr(GetParam().expected)));
}

INSTANTIATE_TEST_SUITE_P(
    Types,
    BadValue,
    testing::Values(
        BadLine{"[engine]\nthreads = 2.0", "threads = 2"},
        BadLine{"[engine]\nthreads = true", "expected an integer"},
        BadLine{"[engine]\nthreads = \"2\"", "expected an integer"},
        BadLine{"[engine]\nthreads = -1", "expected 0 to 4096"},
        BadLine{"[engine]\ncheck_every = 0", "expected at least 1"},
        BadLine{"[limits]\nmessage_bytes = 16", "expected 4096 to"},
        BadLine{"[server]\nsocket = 5", "expected a string"},
        BadLine{"[server]\nsocket_mode = 660", "octal"},
        BadLine{"[server]\nsocket_mode = \"0999\"", "octal"},
        BadLine{"[server]\nsocket_mode = 0o1777", "octal"},
        BadLine{"[server]\nallowed_uids = 1000", "array of integers"},
        BadLine{"[server]\nallowed_uids = [1000, \"bob\"]", "array of integers"},
        BadLine{"[server]\nallowed_uids = [-1]", "expected 0 to"},
        BadLine{"[log]\nlevel = \"loud\"", "expected one of trace, debug, info, warn, error"}
    )
);

TEST_F(ConfigurationTest, text_that_is_no_toml_is_an_error_with_its_line) {
  write_file("[engine]\nthreads = \n");
  EXPECT_THAT(error().message, AllOf(HasSubstr("gradsyncd.toml:2"), HasSubstr("not valid TOML")));
}

TEST_F(ConfigurationTest, a_key_given_twice_is_an_error) {
  write_file("[engine]\nthreads = 1\nthreads = 2\n");
  EXPECT_THAT(error().message, HasSubstr("gradsyncd.toml:3"));
}

TEST_F(ConfigurationTest, a_file_that_is_not_there_is_an_error) {
  inputs.file = folder_ / "nothing.toml";
  EXPECT_THAT(error().message, HasSubstr("nothing.toml"));
}

TEST_F(ConfigurationTest, values_of_the_environment_are_checked_like_those_of_the_file) {
  inputs.environment["GRADSYNC_ENGINE_THREADS"] = "two";
  EXPECT_THAT(error().message, AllOf(HasSubstr("GRADSYNC_ENGINE_THREADS"), HasSubstr("\"two\""), HasSubstr("integer")));
}

TEST_F(ConfigurationTest, texts_are_utf8_without_control_characters) {
  inputs.environment["GRADSYNC_SERVER_HEALTH"] = "127.0.0.1:1\xd0\xd3";
  EXPECT_THAT(error().message, HasSubstr("expected UTF-8"));
  inputs.environment["GRADSYNC_SERVER_HEALTH"] = "127.0.0.1:1\nserving";
  EXPECT_THAT(error().message, AllOf(HasSubstr("\\u000aserving"), HasSubstr("without control characters")));
  inputs.environment.clear();
  write_file(R"([server]
tcp_token_file = "/etc/a\u007fb")");
  EXPECT_THAT(error().message, AllOf(HasSubstr(":2"), HasSubstr("without control characters")));
}

TEST_F(ConfigurationTest, a_slip_in_a_variable_is_an_error_with_the_nearest_name) {
  inputs.environment["GRADSYNC_ENGINE_THREDS"] = "2";
  EXPECT_THAT(error().message, HasSubstr("GRADSYNC_ENGINE_THREDS"));
  EXPECT_EQ(error().hint, "did you mean GRADSYNC_ENGINE_THREADS?");
  inputs.environment.clear();
  inputs.environment["GRADSYNC_SEVER_SOCKET"] = "/tmp/x.sock";
  EXPECT_EQ(error().hint, "did you mean GRADSYNC_SERVER_SOCKET?");
}

TEST_F(ConfigurationTest, variables_of_clients_are_not_its_business) {
  inputs.environment["GRADSYNC_ADDRESS"] = "unix:/tmp/x.sock";
  inputs.environment["GRADSYNC_MODE"] = "sync";
  inputs.environment["GRADSYNC_TOKEN_FILE"] = "/home/me/token";
  inputs.environment["GRADSYNC_KERNELS"] = "off";  // a client's, although a key of [gpu] ends so
  inputs.environment["GRADSYNC_PYTHON"] = "python3";
  inputs.environment["GRADSYNCD"] = "/usr/bin/gradsyncd";
  EXPECT_FALSE(resolve_configuration(inputs).has_error());
}

TEST_F(ConfigurationTest, modes_and_uids_are_read_from_texts) {
  inputs.environment["GRADSYNC_SERVER_SOCKET_MODE"] = "0600";
  inputs.flags["server.allowed_uids"] = "1000,1001";
  EXPECT_EQ(resolved().options.server.socket_mode.value, 0600u);
  EXPECT_THAT(resolved().options.server.allowed_uids, testing::ElementsAre(1000, 1001));
}

TEST_F(ConfigurationTest, a_mode_may_be_octal_or_a_text_in_the_file) {
  write_file("[server]\nsocket_mode = 0o600\n");
  EXPECT_EQ(resolved().options.server.socket_mode.value, 0600u);
  write_file("[server]\nsocket_mode = \"0640\"\n");
  EXPECT_EQ(resolved().options.server.socket_mode.value, 0640u);
}

TEST_F(ConfigurationTest, off_means_no_listener) {
  inputs.flags["server.health"] = "off";
  EXPECT_EQ(resolved().options.server.health, "");
}

TEST_F(ConfigurationTest, tcp_without_a_token_is_refused) {
  inputs.flags["server.tcp"] = "127.0.0.1:0";
  EXPECT_EQ(error().path, "server.tcp_token_file");
  inputs.flags["server.tcp_read_token_file"] = "/etc/read-token";
  EXPECT_EQ(resolved().options.server.tcp, "127.0.0.1:0");
}

TEST_F(ConfigurationTest, links_of_other_daemons_without_a_token_are_refused) {
  inputs.flags["peer.listen"] = "0.0.0.0";
  EXPECT_EQ(error().path, "peer.token_file");
  inputs.flags["peer.listen"] = "off";
  EXPECT_EQ(resolved().options.peer.listen, "");
}

TEST_F(ConfigurationTest, a_name_of_a_node_that_is_too_long_is_refused) {
  inputs.flags["peer.node"] = std::string(65, 'n');
  EXPECT_EQ(error().path, "peer.node");
}

TEST_F(ConfigurationTest, a_socket_that_does_not_end_in_sock_is_refused) {
  inputs.flags["server.socket"] = "/tmp/gradsync";
  EXPECT_THAT(error().message, AllOf(HasSubstr("--server-socket"), HasSubstr(".sock")));
}

TEST_F(ConfigurationTest, what_is_printed_can_be_read_back) {
  inputs.flags = {{"server.socket", "/tmp/a \"b\"\\c.sock"}, {"server.allowed_uids", "7"}, {"log.level", "debug"}};
  const std::string printed = print_configuration(resolved(), false);
  inputs.flags.clear();
  write_file(printed);
  EXPECT_EQ(print_configuration(resolved(), false), printed);
  write_file(print_configuration(resolved(), true));
  EXPECT_EQ(print_configuration(resolved(), false), printed);
}

TEST_F(ConfigurationTest, a_private_daemon_opens_no_port_because_a_file_says_so) {
  write_file(
      "[peer]\nlisten = \"0.0.0.0\"\ntoken_file = \"/etc/token\"\n[server]\ntcp = \"0.0.0.0:9478\"\ntcp_token_file = "
      "\"/etc/token\"\nhealth = \"0.0.0.0:9477\"\n[limits]\nsessions = 3"
  );
  const Options from_file = private_options(*resolve_configuration(inputs), "/tmp/x");
  EXPECT_EQ(from_file.server.tcp, "");
  EXPECT_EQ(from_file.server.tcp_token_file, "") << "this user may not be able to read it";
  EXPECT_EQ(from_file.peer.listen, "");
  EXPECT_EQ(from_file.server.health, "");
  EXPECT_EQ(from_file.server.socket, "/tmp/x/gradsync.sock");
  EXPECT_EQ(from_file.limits.sessions, 3) << "everything else holds";
  inputs.flags["server.tcp"] = "127.0.0.1:0";
  inputs.environment["GRADSYNC_SERVER_HEALTH"] = "127.0.0.1:0";
  const Options asked_for = private_options(*resolve_configuration(inputs), "/tmp/x");
  EXPECT_EQ(asked_for.server.tcp, "127.0.0.1:0");
  EXPECT_EQ(asked_for.server.tcp_token_file, "/etc/token");
  EXPECT_EQ(asked_for.server.health, "127.0.0.1:0");
}

TEST_F(ConfigurationTest, origins_are_printed_beside_the_values) {
  inputs.flags["engine.threads"] = "4";
  EXPECT_THAT(print_configuration(resolved(), true), testing::ContainsRegex("threads = 4 +# flag --engine-threads"));
}

}  // namespace
}  // namespace gradsync::app
