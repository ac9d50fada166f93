#include "app/config/socket_places.hpp"

#include "app/cli/ask/rpc_client.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace gradsync::app {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(SocketPlaces, are_those_of_the_table_that_the_python_client_is_tested_with_too) {
  std::ifstream file(std::string(GRADSYNC_SOURCE_DIR) + "/tests/contract/socket_places.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 10u);
  for (const auto& one : cases) {
    const auto writable = one.at("may_write").get<std::vector<std::string>>();
    const Caller caller{one.at("uid").get<std::uint32_t>(), [&](const std::string& folder) {
                          return std::find(writable.begin(), writable.end(), folder) != writable.end();
                        }};
    EXPECT_EQ(
        socket_places(one.at("environment").get<Environment>(), caller),
        one.at("places").get<std::vector<std::string>>()
    ) << one.at("name");
  }
}

/// A folder in /tmp, whatever TMPDIR says, because the rules are about /tmp.
class FolderInTmp : public testing::Test {
 protected:
  FolderInTmp() {
    std::string name = "/tmp/gradsync-places-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }

  ~FolderInTmp() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string folder() const { return folder_; }

  [[nodiscard]] std::string socket() const { return folder_ + "/gradsync.sock"; }

  std::string folder_;
  const std::uint32_t uid = ::geteuid();
  const std::uint32_t stranger = uid + 1;
};

TEST_F(FolderInTmp, that_is_private_is_taken) {
  EXPECT_FALSE(check_private_folder(folder(), uid));
  EXPECT_FALSE(check_private_folder(folder() + "/missing", uid));
}

TEST_F(FolderInTmp, that_inherited_the_group_of_tmp_is_private) {
  ASSERT_EQ(::chmod(folder().c_str(), 02700), 0);
  EXPECT_FALSE(check_private_folder(folder(), uid));
}

TEST_F(FolderInTmp, of_another_user_is_not_private) {
  const auto error = check_private_folder(folder(), stranger);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->path, "server.socket");
  EXPECT_THAT(error->message, AllOf(HasSubstr(folder()), HasSubstr("a directory of uid " + std::to_string(uid))));
  EXPECT_THAT(error->hint, AllOf(HasSubstr("remove it"), HasSubstr("--socket")));
}

TEST_F(FolderInTmp, with_another_mode_is_not_private) {
  for (const mode_t mode : {0770, 0701, 0500, 01700}) {
    ASSERT_EQ(::chmod(folder().c_str(), mode), 0);
    const auto error = check_private_folder(folder(), uid);
    ASSERT_TRUE(error) << mode;
    EXPECT_THAT(error->message, HasSubstr("a directory of mode"));
  }
}

TEST_F(FolderInTmp, that_is_a_link_or_a_file_is_not_private) {
  std::filesystem::create_directory_symlink(folder(), folder() + "/link");
  EXPECT_THAT(check_private_folder(folder() + "/link", uid)->message, HasSubstr("a symbolic link"));
  std::ofstream{folder() + "/file"} << "x";
  EXPECT_THAT(check_private_folder(folder() + "/file", uid)->message, HasSubstr("no directory"));
}

TEST_F(FolderInTmp, that_the_user_or_root_owns_is_connected_to) {
  std::ofstream{socket()} << "";
  EXPECT_FALSE(refuse_place(socket(), uid));
  EXPECT_FALSE(refuse_place(folder() + "/missing/gradsync.sock", stranger)) << "nothing is there";
  if (uid == 0) {
    EXPECT_FALSE(refuse_place(socket(), stranger));
  }
}

TEST_F(FolderInTmp, of_a_stranger_is_never_connected_to) {
  if (uid != 0) {
    GTEST_SKIP() << "only root can give a folder away";
  }
  ASSERT_EQ(::chown(folder().c_str(), stranger, stranger), 0);
  for (const std::string& path : {socket(), folder() + "/../" + folder().substr(5) + "/gradsync.sock"}) {
    const auto error = refuse_place(path, uid);
    ASSERT_TRUE(error) << path;
    EXPECT_EQ(error->path, "address");
    EXPECT_THAT(error->message, AllOf(HasSubstr(folder()), HasSubstr("uid " + std::to_string(stranger))));
    EXPECT_THAT(error->hint, HasSubstr("outside of /tmp"));
  }
  EXPECT_FALSE(refuse_place(socket(), stranger)) << "its owner may";
  EXPECT_EQ(post_rpc(socket(), "{}").error().path, "address");
}

TEST_F(FolderInTmp, that_others_may_write_to_needs_a_socket_of_the_user) {
  if (uid != 0) {
    GTEST_SKIP() << "only root can give a file away";
  }
  ASSERT_EQ(::chmod(folder().c_str(), 01777), 0);
  std::ofstream{socket()} << "";
  EXPECT_FALSE(refuse_place(socket(), uid));
  ASSERT_EQ(::chown(socket().c_str(), stranger, stranger), 0);
  const auto error = refuse_place(socket(), uid);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("the socket belongs to uid"));
}

TEST_F(FolderInTmp, is_looked_at_behind_a_link) {
  if (uid != 0) {
    GTEST_SKIP() << "only root can give a folder away";
  }
  const std::string link = folder() + "-link";
  std::filesystem::create_directory_symlink("/run", link);
  EXPECT_FALSE(refuse_place(link + "/gradsync.sock", uid));
  ASSERT_EQ(::lchown(link.c_str(), stranger, stranger), 0);
  EXPECT_TRUE(refuse_place(link + "/gradsync.sock", uid)) << "a stranger's link could lead elsewhere tomorrow";
  std::filesystem::remove(link);
}

TEST_F(FolderInTmp, is_no_place_of_a_private_daemon_elsewhere) {
  EXPECT_FALSE(make_private_place(socket(), stranger)) << "only the folder of the table is made";
  EXPECT_FALSE(std::filesystem::exists("/tmp/gradsync-" + std::to_string(stranger) + "/gradsync.sock"));
}

}  // namespace
}  // namespace gradsync::app
