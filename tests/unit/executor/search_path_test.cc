#include "executor/search_path.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/unit/executor/slot_harness.h"

namespace kcoral::executor {
namespace {

TEST(SearchPath, FindsEveryFileInOrderAndOnlyInAbsoluteDirectories) {
  TemporaryDirectory directory;
  for (const char* name : {"a", "b", "c"}) std::filesystem::create_directory(directory.path() / name);
  for (const char* name : {"a", "c"}) std::ofstream(directory.path() / name / "tool") << "x";
  const std::string root = directory.path();
  const char* before = std::getenv("PATH");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("PATH", (root + "/c::.:" + root + "/b:" + root + "/a").c_str(), 1);
  EXPECT_EQ(files_on_path("tool"), (std::vector<std::string>{root + "/c/tool", root + "/a/tool"}));
  EXPECT_TRUE(files_on_path("other").empty());
  ::unsetenv("PATH");
  EXPECT_TRUE(files_on_path("tool").empty());
  ::setenv("PATH", kept.c_str(), 1);
}

}  // namespace
}  // namespace kcoral::executor
