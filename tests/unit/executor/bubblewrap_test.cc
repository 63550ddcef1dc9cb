#include "executor/sandbox/bubblewrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace kcoral::executor {
namespace {

using testing::HasSubstr;

SlotSpec plain_spec() {
  SlotSpec spec;
  spec.uid = 65534;
  spec.gid = 65534;
  spec.python = "/usr/bin/python3";
  spec.bubblewrap = std::make_shared<const Bubblewrap>(Bubblewrap{"/usr/bin/bwrap", UniqueFd()});
  return spec;
}

/// The command line as one text, each argument between single spaces.
std::string line_of(const SlotSpec& spec) {
  auto command = make_slot_command(spec, {"/usr/bin/python3", "x"}, 10);
  EXPECT_TRUE(command.has_value()) << command.error().message;
  std::string line;
  for (const std::string& argument : command->arguments) line += argument + " ";
  return line;
}

std::string refusal_of(const SlotSpec& spec) {
  auto command = make_slot_command(spec, {"x"}, 10);
  EXPECT_FALSE(command.has_value());
  return command ? "" : command.error().message;
}

TEST(Bubblewrap, IsTheCarriedOneWhereThereIsOne) {
  InstallPaths paths;
  paths.bubblewrap = "/bin/true";
  const auto carried = open_bubblewrap(paths);
  ASSERT_TRUE(carried.has_value()) << carried.error().message;
  EXPECT_EQ((*carried)->path, "/bin/true");
  EXPECT_TRUE((*carried)->file);
  paths.bubblewrap = "/nonexistent/bwrap";
  const auto missing = open_bubblewrap(paths);
  ASSERT_FALSE(missing.has_value());
  EXPECT_THAT(missing.error().message, HasSubstr("/nonexistent/bwrap"));
}

TEST(Bubblewrap, UnsharesEverythingAndShowsReadOnly) {
  const std::string line = line_of(plain_spec());
  for (const char* argument :
       {"--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-ipc", "--unshare-cgroup-try",
        "--hostname kcoral", "--die-with-parent", "--new-session", "--clearenv", "--ro-bind /usr /usr", "--proc /proc",
        "--dev /dev", "--remount-ro /dev --remount-ro / -- /kcoral/init zygote -- /usr/bin/python3 x "}) {
    EXPECT_THAT(line, HasSubstr(argument));
  }
  EXPECT_EQ(line.find("--bind "), std::string::npos);
  EXPECT_EQ(line.find("--dev-bind"), std::string::npos);
  EXPECT_EQ(line.find("shadow"), std::string::npos);
}

TEST(Bubblewrap, NeverAsRoot) {
  SlotSpec spec = plain_spec();
  spec.uid = 0;
  EXPECT_THAT(refusal_of(spec), HasSubstr("uid 0"));
}

TEST(Bubblewrap, ShowsEachPathOnceAndParentsFirst) {
  SlotSpec spec = plain_spec();
  spec.read_only_paths = {"/srv/models/a", "/srv/models", "/usr/lib/python3", "/srv/models/", "/srv/modelsx"};
  const std::string line = line_of(spec);
  EXPECT_THAT(line, HasSubstr("--ro-bind /srv/models /srv/models --ro-bind /srv/modelsx /srv/modelsx"));
  EXPECT_EQ(line.find("/srv/models/a"), std::string::npos);
  EXPECT_EQ(line.find("/usr/lib/python3"), std::string::npos);
}

TEST(Bubblewrap, RefusesPathsThatCannotBeShown) {
  SlotSpec spec = plain_spec();
  for (const char* path : {"relative", "/", "", "//", "/tmp/venv", "/work", "/run/kcoral/x", "/proc/1", "/kcoral"}) {
    spec.read_only_paths = {path};
    EXPECT_NE(refusal_of(spec), "") << path;
  }
  spec.hidden_paths = {"/srv/data"};
  spec.read_only_paths = {"/srv/data/model"};
  EXPECT_THAT(refusal_of(spec), HasSubstr("stays hidden"));
}

TEST(Bubblewrap, CoversWhatIsHiddenOnlyWhereItShows) {
  SlotSpec spec = plain_spec();
  spec.hidden_paths = {"/usr/share", "/var/lib", "/usr/does-not-exist"};
  const std::string line = line_of(spec);
  EXPECT_THAT(line, HasSubstr("--perms 0000 --tmpfs /usr/share --remount-ro /usr/share"));
  EXPECT_EQ(line.find("/var/lib"), std::string::npos);
  EXPECT_EQ(line.find("does-not-exist"), std::string::npos);
}

TEST(Bubblewrap, EnvironmentIsTheAllowListAndTheOperators) {
  SlotSpec spec = plain_spec();
  spec.environment = {{"TZ", "Europe/Berlin"}, {"MY", "own"}};
  const auto environment = slot_environment(spec);
  EXPECT_EQ(environment.at("HOME"), "/run/kcoral/home");
  EXPECT_EQ(environment.at("TMPDIR"), "/tmp");
  EXPECT_EQ(environment.at("USER"), "kcoral");
  EXPECT_EQ(environment.at("LANG"), "C.UTF-8");
  EXPECT_EQ(environment.at("TZ"), "Europe/Berlin");
  EXPECT_EQ(environment.at("MY"), "own");
  spec.python = "/opt/venv/bin/python3";
  EXPECT_TRUE(slot_environment(spec).at("PATH").starts_with("/opt/venv/bin:"));
}

TEST(Bubblewrap, FilesComeByDescriptor) {
  SlotSpec spec = plain_spec();
  spec.files = {{"/kcoral/init", true, *SealedMemory::copy_of("x")},
                {"/kcoral/a.py", false, *SealedMemory::copy_of("y")}};
  auto command = make_slot_command(spec, {"x"}, 10);
  ASSERT_TRUE(command.has_value());
  std::vector<int> numbers;
  for (const auto& [fd, content] : command->inputs) numbers.push_back(fd);
  ASSERT_EQ(numbers.size(), 6U);  // passwd, group, hosts, nsswitch.conf and the two
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], 10 + static_cast<int>(i));
  EXPECT_THAT(line_of(spec),
              HasSubstr("--perms 0555 --ro-bind-data 14 /kcoral/init --perms 0444 --ro-bind-data 15 /kcoral/a.py"));
}

}  // namespace
}  // namespace kcoral::executor
