// The library as it is built.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace {

/// The lines that a command prints.
std::vector<std::string> lines_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::vector<std::string> lines;
  std::array<char, 1024> line;
  while (pipe != nullptr && ::fgets(line.data(), line.size(), pipe.get()) != nullptr) lines.emplace_back(line.data());
  return lines;
}

TEST(TimingLibrary, NeedsNothingButLibcAndIsNeverUnloaded) {
  const auto lines = lines_of("readelf -d " KCORAL_TEST_TIMING_LIBRARY " 2>/dev/null");
  if (lines.empty()) GTEST_SKIP() << "needs readelf";
  std::vector<std::string> needed;
  bool stays = false;
  for (const std::string& line : lines) {
    if (line.find("(NEEDED)") != std::string::npos) needed.push_back(line.substr(line.find('[')));
    if (line.find("NODELETE") != std::string::npos) stays = true;
  }
  EXPECT_EQ(needed, std::vector<std::string>{"[libc.so.6]\n"});
  EXPECT_TRUE(stays);
}

TEST(TimingLibrary, ShowsItsInterfaceAndNothingElse) {
  const auto lines = lines_of("nm -D --defined-only " KCORAL_TEST_TIMING_LIBRARY " 2>/dev/null");
  if (lines.empty()) GTEST_SKIP() << "needs nm";
  for (const std::string& line : lines) EXPECT_NE(line.find(" T kcoral_"), std::string::npos) << line;
  EXPECT_EQ(lines.size(), 8U);
}

}  // namespace
