// Replays the seed corpora of the fuzz targets: every entry is a program or value that must be accepted, and no
// mutation of one of its bytes may do worse than be refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "schema/json_reader.h"
#include "schema/program.h"
#include "schema/value.h"

namespace kcoral::schema {
namespace {

std::vector<std::filesystem::path> corpus(std::string_view name) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(CORPUS_DIR) / name)) {
    files.push_back(entry.path());
  }
  return files;
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

constexpr ProgramBounds kBounds{.gpu_count_max = 8};

TEST(CorpusTest, EveryProgramIsAccepted) {
  const auto files = corpus("schema_program");
  EXPECT_GE(files.size(), 5U);
  for (const auto& file : files) {
    const auto program = parse_program(content_of(file), kBounds);
    EXPECT_TRUE(program) << file << ": " << program.error().message;
  }
}

TEST(CorpusTest, DamagedProgramsAreParsedOrRefusedWithAValidMessage) {
  for (const auto& file : corpus("schema_program")) {
    const std::string text = content_of(file);
    const size_t stride = 1 + text.size() / 300;
    for (size_t i = 0; i < text.size(); i += stride) {
      for (const char byte : {'"', '\\', '{', ']', ',', '0', '\0', '\xff'}) {
        std::string damaged = text;
        damaged[i] = byte;
        const auto program = parse_program(damaged, kBounds);
        if (program) continue;
        EXPECT_EQ(program.error().kind, ErrorKind::kParse);
        EXPECT_TRUE(is_valid_utf8(program.error().message));
        EXPECT_LT(program.error().message.size(), 1000U);
      }
    }
  }
}

/// An entry as schema_value_fuzz reads it: the first byte says how many pieces of 0, 1, 2, ... bytes come with the
/// value.
Result<std::string> wire_entry(std::string_view entry, std::vector<Part>& parts) {
  const auto memory = SealedMemory::copy_of(std::string(64, 'm'));
  std::vector<Extent> extents;
  uint64_t offset = 0;
  for (uint64_t i = 0; i < static_cast<uint64_t>(entry.front()) % 8; ++i) {
    extents.push_back({*memory, offset, i});
    offset += i;
  }
  return wire_value(entry.substr(1), extents, parts);
}

TEST(CorpusTest, EveryValueIsAccepted) {
  const auto files = corpus("schema_value");
  EXPECT_GE(files.size(), 5U);
  for (const auto& file : files) {
    std::vector<Part> parts;
    const auto value = wire_entry(content_of(file), parts);
    EXPECT_TRUE(value) << file << ": " << value.error().message;
  }
}

TEST(CorpusTest, DamagedValuesAreRewrittenOrRefused) {
  for (const auto& file : corpus("schema_value")) {
    const std::string text = content_of(file);
    for (size_t i = 1; i < text.size(); ++i) {
      for (const char byte : {'"', '\\', '{', ']', ',', '0', '\0', '\xff'}) {
        std::string damaged = text;
        damaged[i] = byte;
        std::vector<Part> parts;
        const auto value = wire_entry(damaged, parts);
        if (value) {
          EXPECT_TRUE(JsonReader(*value, 512).read_verbatim());
        } else {
          EXPECT_EQ(value.error().kind, ErrorKind::kEngine);
          EXPECT_TRUE(parts.empty());
        }
      }
    }
  }
}

}  // namespace
}  // namespace kcoral::schema
