// Archives as tar unpacks them.
#include "gateway/tar.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kcoral::gateway {
namespace {

namespace fs = std::filesystem;

class Tar : public ::testing::Test {
 protected:
  Tar() {
    std::string name = (fs::temp_directory_path() / "kcoral-tar-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    directory = name;
  }
  ~Tar() override { fs::remove_all(directory); }

  schema::Extent content(std::string_view text) {
    return {*SealedMemory::copy_of("before" + std::string(text) + "behind"), 6, text.size()};
  }
  /// Writes the archive to a file and has tar unpack it.
  void unpack() {
    std::ofstream file(directory / "archive", std::ios::binary);
    for (const auto& segment : std::move(writer).finish()) {
      if (const auto* extent = std::get_if<schema::Extent>(&segment)) {
        file << extent->memory->view()->substr(extent->offset, extent->length);
      } else {
        file << std::get<std::string>(segment);
      }
    }
    file.close();
    EXPECT_EQ(fs::file_size(directory / "archive") % 512, 0u);
    fs::create_directory(root());
    const std::string command = fmt::format("umask 022; tar -xf {0}/archive -C {0}/out 2>{0}/said", directory.string());
    EXPECT_EQ(std::system(command.c_str()), 0);
    EXPECT_EQ(read("../said"), "") << "tar warns of nothing";
  }
  fs::path root() const { return directory / "out"; }
  std::string read(const std::string& path) const {
    std::ostringstream text;
    text << std::ifstream(root() / path, std::ios::binary).rdbuf();
    return text.str();
  }
  struct stat stat_of(const std::string& path) const {
    struct stat found {};
    EXPECT_EQ(::stat((root() / path).c_str(), &found), 0) << path;
    return found;
  }

  static constexpr WallTime kTime{std::chrono::microseconds(1'700'000'000'999'999)};
  fs::path directory;
  TarWriter writer{kTime};
};

TEST_F(Tar, FilesAndDirectoriesComeOutAsTheyWere) {
  std::string binary;
  for (int i = 0; i < 100'000; ++i) binary += static_cast<char>(i * 2654435761u >> 13);
  writer.add_directory("a");
  writer.add_directory("a/empty");
  writer.add_file("a/binary", content(binary));
  writer.add_file("a/.hidden", content("x"));
  writer.add_file("none", content(""));
  writer.add_file("block", content(std::string(512, 'b')));
  unpack();
  EXPECT_EQ(read("a/binary"), binary);
  EXPECT_EQ(read("a/.hidden"), "x");
  EXPECT_EQ(read("block"), std::string(512, 'b'));
  EXPECT_EQ(fs::file_size(root() / "none"), 0u);
  EXPECT_TRUE(fs::is_empty(root() / "a/empty"));
  EXPECT_EQ(stat_of("a/binary").st_mode & 07777, 0644u);
  EXPECT_EQ(stat_of("a/empty").st_mode & 07777, 0755u);
  EXPECT_EQ(stat_of("a/binary").st_mtime, 1'700'000'000);
}

TEST_F(Tar, LongAndForeignNamesComeOutAsTheyWere) {
  std::vector<std::string> paths{"\u00e4/\u20ac.txt", std::string(99, 'n'), std::string(100, 'n'),
                                 std::string(101, 'n')};
  std::string deep(200, 'd');
  writer.add_directory("\u00e4");
  writer.add_directory(deep);
  // Records whose length gets a digit more by counting itself are among them.
  for (size_t length = 1; length <= 255; length += 2) paths.push_back(deep + "/" + std::string(length, 'x'));
  for (const std::string& path : paths) writer.add_file(path, content(path));
  unpack();
  for (const std::string& path : paths) EXPECT_EQ(read(path), path);
}

TEST_F(Tar, ContentIsNotCopied) {
  const schema::Extent extent = content("content");
  writer.add_file("f", extent);
  const auto segments = std::move(writer).finish();
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(std::get<schema::Extent>(segments[1]).memory, extent.memory);
}

TEST_F(Tar, NothingIsAnArchiveToo) {
  unpack();
  EXPECT_TRUE(fs::is_empty(root()));
}

}  // namespace
}  // namespace kcoral::gateway
