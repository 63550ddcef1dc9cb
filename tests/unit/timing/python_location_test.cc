#include "executor/timing/python_location.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace kcoral::timing {
namespace {

std::string in_dump(const std::string& dump, const char* skipped, const char* own, size_t size = 256) {
  std::string location(size, '\0');
  const bool found = location_in_dump(dump.c_str(), skipped, own, location.data(), location.size());
  return found ? std::string(location.c_str()) : "nothing";
}

constexpr const char* kDump =
    "Stack (most recent call first):\n"
    "  File \"/venv/torch/cuda/__init__.py\", line 412 in _lazy_init\n"
    "  File \"/run/kcoral/modules/kcoral_upload_m.py\", line 7 in inner\n"
    "  File \"/run/kcoral/modules/kcoral_upload_m.py\", line 12 in f\n"
    "  File \"/kcoral/python/boundary.py\", line 90 in _cross\n";

TEST(PythonLocation, PrefersTheProgramsOwnCode) {
  EXPECT_EQ(in_dump(kDump, "/kcoral/python", "/run/kcoral/modules\n/work"), "/run/kcoral/modules/kcoral_upload_m.py:7");
  EXPECT_EQ(in_dump(kDump, "/kcoral/python", "/work\n/run/kcoral/modules/"),
            "/run/kcoral/modules/kcoral_upload_m.py:7");
}

TEST(PythonLocation, ElseTakesTheInnermostThatIsNotOurs) {
  EXPECT_EQ(in_dump(kDump, "/kcoral/python", "/work"), "/venv/torch/cuda/__init__.py:412");
  EXPECT_EQ(in_dump(kDump, "/venv", ""), "/run/kcoral/modules/kcoral_upload_m.py:7");
  const std::string ours = "  File \"/kcoral/python/boundary.py\", line 90 in _cross\n";
  EXPECT_EQ(in_dump(ours, "/kcoral/python", "/work"), "nothing");
  EXPECT_EQ(in_dump(ours, "/kcoral/pyth", "/work"), "/kcoral/python/boundary.py:90") << "no prefix of a name";
}

TEST(PythonLocation, ReadsOnlyWhatIsAFrame) {
  EXPECT_EQ(in_dump("", "/x", "/y"), "nothing");
  EXPECT_EQ(in_dump("<no Python frame>\n", "/x", "/y"), "nothing");
  EXPECT_EQ(in_dump("  File \"/a.py\", line ??? in f\n  ...\n", "/x", "/y"), "nothing");
  EXPECT_EQ(in_dump("  File \"/a.py\n", "/x", "/y"), "nothing");
  EXPECT_EQ(in_dump("  File \"/a.py\", line 3", "/x", "/y"), "/a.py:3") << "cut there";
  EXPECT_EQ(in_dump("  File \"<string>\", line 3 in f\n", "/x", "/y"), "<string>:3");
}

TEST(PythonLocation, IsCutWhereThereIsNoRoom) {
  EXPECT_EQ(in_dump("  File \"/a/long/path.py\", line 3 in f\n", "/x", "/y", 8), "/a/long");
}

TEST(PythonLocation, WithoutAnInterpreterItIsANativeThread) {
  char location[64];
  describe_location("/x", "/y", location, sizeof location);
  EXPECT_STREQ(location, "a native thread");
}

}  // namespace
}  // namespace kcoral::timing
