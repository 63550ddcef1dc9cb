#include "base/memfd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace kcoral {
namespace {

TEST(SealedMemory, HoldsWhatWasWrittenAndCannotBeChanged) {
  auto writer = MemoryWriter::create("test");
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->append("hello "));
  ASSERT_TRUE(writer->append("world"));
  auto memory = std::move(*writer).seal();
  ASSERT_TRUE(memory);
  EXPECT_EQ((*memory)->size_bytes(), 11u);
  EXPECT_EQ(*(*memory)->view(), "hello world");
  EXPECT_LT(::write((*memory)->fd(), "x", 1), 0);
  EXPECT_NE(::ftruncate((*memory)->fd(), 1), 0);
}

TEST(SealedMemory, MayBeEmpty) {
  auto memory = SealedMemory::copy_of("");
  ASSERT_TRUE(memory);
  EXPECT_EQ((*memory)->size_bytes(), 0u);
  EXPECT_EQ(*(*memory)->view(), "");
}

TEST(SealedMemory, RefusesAMemfdThatCanStillChange) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::write(fd.get(), "abc", 3), 3);
  ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_FALSE(SealedMemory::adopt(std::move(fd), 100));
}

TEST(SealedMemory, RefusesWhatIsNoMemfd) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd write_end(ends[1]);
  EXPECT_FALSE(SealedMemory::adopt(UniqueFd(ends[0]), 100));
  EXPECT_FALSE(SealedMemory::adopt(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), 100));
}

TEST(SealedMemory, RefusesMoreThanTheLimitBeforeLookingAtIt) {
  auto writer = MemoryWriter::create("test");
  ASSERT_TRUE(writer->append("12345"));
  auto memory = std::move(*writer).seal();
  UniqueFd copy(::fcntl((*memory)->fd(), F_DUPFD_CLOEXEC, 0));
  const auto adopted = SealedMemory::adopt(std::move(copy), 4);
  ASSERT_FALSE(adopted);
  EXPECT_NE(adopted.error().message.find("5 bytes"), std::string::npos);
}

TEST(MemoryWriter, WhoReadsAlongSeesWhatFollowsAndChangesNothing) {
  auto writer = MemoryWriter::create("test");
  ASSERT_TRUE(writer);
  EXPECT_EQ(*writer->content(), "");
  ASSERT_TRUE(writer->append("one"));
  const auto reader = writer->open_for_reading();
  ASSERT_TRUE(reader);
  ASSERT_TRUE(writer->append(", two"));
  char text[100];
  EXPECT_EQ(::read(reader->get(), text, sizeof text), 8);
  ASSERT_TRUE(writer->append(", three"));
  EXPECT_EQ(*writer->content(), "one, two, three") << "its place in it is its own";
  EXPECT_EQ(::read(reader->get(), text, sizeof text), 7);
  EXPECT_LT(::write(reader->get(), "x", 1), 0);
  EXPECT_NE(::ftruncate(reader->get(), 0), 0);
}

}  // namespace
}  // namespace kcoral
