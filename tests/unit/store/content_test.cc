#include "store/content.h"

#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "store/blob_cache.h"
#include "store/program_text.h"
#include "tests/unit/store/raw_content.h"
#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

class ContentTest : public testing::Test {
 protected:
  void SetUp() override { open(); }
  void open() {
    content_.reset();
    content_ = Content::open(path_).value();
  }
  /// Requires: `open` once it has gone.
  RawContent raw() {
    content_.reset();
    return RawContent(path_);
  }

  /// Table files of large content.
  std::vector<std::filesystem::path> table_files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().extension() == ".sst" && entry.file_size() >= limits::kTableFileBytesMin) {
        found.push_back(entry.path());
      }
    }
    return found;
  }
  std::string artifact(ContentId id, uint64_t size_bytes) {
    std::string read;
    EXPECT_TRUE(content_->read_artifact(id, size_bytes, [&](std::string_view bytes) {
      read += bytes;
      return Status();
    }));
    return read;
  }

  TempDir dir_;
  const std::string path_ = dir_.path() + "/content";
  std::unique_ptr<Content> content_;
};

std::string patterned(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + i / 4096);
  return bytes;
}

TEST_F(ContentTest, BlobsOfAllSizesComeBack) {
  const size_t sizes[] = {0,
                          1,
                          limits::kChunkBytes - 1,
                          limits::kChunkBytes,
                          limits::kChunkBytes + 1,
                          5 * limits::kChunkBytes,
                          5 * limits::kChunkBytes + 99,
                          limits::kTableFileBytesMin - 1,
                          limits::kTableFileBytesMin,
                          limits::kTableFileBytesMin + 1,
                          2 * limits::kTableFileBytesMin + 99};
  for (const size_t size : sizes) {
    const std::string bytes = patterned(size);
    ASSERT_TRUE(content_->put_blob(Sha256::of(bytes), bytes));
  }
  ASSERT_TRUE(content_->sync());
  EXPECT_TRUE(content_->is_synced());
  open();
  for (const size_t size : sizes) {
    const std::string bytes = patterned(size);
    EXPECT_EQ(content_->blob_bytes(Sha256::of(bytes)).value(), size);
    EXPECT_TRUE(content_->load_blob(Sha256::of(bytes)).value()->view().value() == bytes) << size;
  }
  EXPECT_FALSE(content_->blob_bytes(Sha256::of("unknown")).value());
  EXPECT_EQ(content_->load_blob(Sha256::of("unknown")).error().kind, ErrorKind::kNotFound);
}

TEST_F(ContentTest, ADamagedBlobIsDroppedAndCanBeStoredAgain) {
  for (const std::string& damage :
       {std::string("shorter"), std::string("same length as beforX"), std::string(2000, 'l')}) {
    const std::string bytes = "same length as before";
    const Digest digest = Sha256::of(bytes);
    ASSERT_TRUE(content_->put_blob(digest, bytes));
    raw().damage_blob(digest, damage);
    open();
    EXPECT_EQ(content_->load_blob(digest).error().kind, ErrorKind::kNotFound);
    EXPECT_FALSE(content_->blob_bytes(digest).value());
    ASSERT_TRUE(content_->put_blob(digest, bytes));
    EXPECT_EQ(content_->load_blob(digest).value()->view().value(), bytes);
  }
}

TEST_F(ContentTest, TheSameBlobFromManyAtOnceIsHeldOnce) {
  for (const size_t size : {3 * limits::kChunkBytes, size_t{limits::kTableFileBytesMin}}) {
    const std::string bytes = patterned(size);
    const Digest digest = Sha256::of(bytes);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] { EXPECT_TRUE(content_->put_blob(digest, bytes)); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(content_->load_blob(digest).value()->view().value() == bytes);
    ASSERT_TRUE(content_->sweep());
    EXPECT_TRUE(content_->load_blob(digest).value()->view().value() == bytes);
  }
  EXPECT_EQ(table_files().size(), 1u);
  EXPECT_TRUE(raw().nameless().empty());
}

TEST_F(ContentTest, LargeContentOfManyPiecesComesBack) {
  const std::string bytes = patterned(limits::kTableFileBytesMin + 12345);
  std::vector<std::string_view> pieces;
  for (std::string_view rest = bytes; !rest.empty(); rest.remove_prefix(pieces.back().size())) {
    pieces.push_back(rest.substr(0, 3 + pieces.size() * 100'000));
    pieces.emplace_back();
    std::swap(pieces.back(), pieces[pieces.size() - 2]);
  }
  const auto id = content_->put_artifact(Uuid::random(), "header", pieces);
  ASSERT_TRUE(id);
  EXPECT_EQ(table_files().size(), 1u);
  EXPECT_TRUE(artifact(*id, bytes.size()) == bytes);
  ASSERT_TRUE(content_->sync());
  open();
  EXPECT_TRUE(artifact(*id, bytes.size()) == bytes);
}

TEST_F(ContentTest, ADamagedTableFileIsNoticedAndItsSpaceIsFreeAtOnce) {
  const std::string bytes = patterned(limits::kTableFileBytesMin);
  const Digest digest = Sha256::of(bytes);
  ASSERT_TRUE(content_->put_blob(digest, bytes));
  ASSERT_TRUE(content_->sync());
  content_.reset();
  ASSERT_EQ(table_files().size(), 1u);
  std::fstream file(table_files()[0], std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(bytes.size() / 2));
  file << "damage";
  file.close();
  open();
  EXPECT_EQ(content_->load_blob(digest).error().kind, ErrorKind::kNotFound);
  EXPECT_FALSE(content_->blob_bytes(digest).value());
  EXPECT_TRUE(table_files().empty());
  ASSERT_TRUE(content_->put_blob(digest, bytes));
  EXPECT_TRUE(content_->load_blob(digest).value()->view().value() == bytes);
}

TEST_F(ContentTest, TheSpaceOfLargeContentIsFreeAtOnce) {
  const std::string bytes = patterned(limits::kTableFileBytesMin);
  const std::string_view small[] = {"small"};
  const std::string_view large[] = {bytes};
  const Uuid request = Uuid::random();
  const auto before = content_->put_artifact(request, "h", small);
  const auto first = content_->put_artifact(request, "h", large);
  const auto second = content_->put_artifact(request, "h", large);
  const auto after = content_->put_artifact(request, "h", small);
  ASSERT_TRUE(after);
  EXPECT_EQ(table_files().size(), 2u);
  ASSERT_TRUE(content_->drop_artifact(request, *first));
  EXPECT_EQ(table_files().size(), 1u);
  EXPECT_FALSE(content_->artifact_header(request, *first).value());
  for (const ContentId id : {*before, *after}) EXPECT_EQ(artifact(id, 5), "small");
  EXPECT_TRUE(artifact(*second, bytes.size()) == bytes);
  // Somebody who reads it goes on to the end.
  bool dropped = false;
  ASSERT_TRUE(content_->read_artifact(*second, bytes.size(), [&](std::string_view) -> Status {
    if (std::exchange(dropped, true)) return {};
    return content_->drop_artifact(request, *second);
  }));
  EXPECT_TRUE(table_files().empty());
  open();
  for (const ContentId id : {*before, *after}) EXPECT_EQ(artifact(id, 5), "small");
}

TEST_F(ContentTest, WhatACrashLeftOnTheWayInIsRemoved) {
  content_.reset();
  std::ofstream(path_ + "/incoming/7") << "half a table file";
  open();
  EXPECT_TRUE(std::filesystem::is_empty(path_ + "/incoming"));
}

TEST_F(ContentTest, WhatWasOnlyBegunIsNotTakenForNewContent) {
  const ContentId begun = raw().begin_write();
  open();
  const std::string_view piece[] = {"new"};
  const auto id = content_->put_artifact(Uuid::random(), "header", piece);
  EXPECT_GT(*id, begun);
  ASSERT_TRUE(content_->sweep());
  EXPECT_EQ(artifact(*id, 3), "new");
}

TEST_F(ContentTest, HalfWrittenContentIsSweptAndTheRestStays) {
  const std::string bytes = patterned(2 * limits::kChunkBytes);
  ASSERT_TRUE(content_->put_blob(Sha256::of(bytes), bytes));
  const ContentId half = raw().half_write(patterned(limits::kChunkBytes));
  open();
  const std::string_view pieces[] = {bytes, bytes};
  const auto artifact = content_->put_artifact(Uuid::random(), "header", pieces);
  ASSERT_TRUE(artifact);
  EXPECT_EQ(raw().nameless(), std::vector{half});
  open();
  ASSERT_TRUE(content_->sweep());
  EXPECT_TRUE(raw().nameless().empty());
  open();
  EXPECT_TRUE(content_->load_blob(Sha256::of(bytes)).value()->view().value() == bytes);
  EXPECT_TRUE(content_->read_artifact(*artifact, 2 * bytes.size(), [](std::string_view) { return Status(); }));
}

TEST_F(ContentTest, NewContentNeverTakesTheIdOfOldContent) {
  const Uuid request = Uuid::random();
  const std::string_view first_piece[] = {"first"};
  const auto first = content_->put_artifact(request, "h1", first_piece);
  open();
  const std::string_view second_piece[] = {"second"};
  const auto second = content_->put_artifact(request, "h2", second_piece);
  EXPECT_GT(*second, *first);
  EXPECT_EQ(content_->artifact_header(request, *first).value(), "h1");
  ASSERT_TRUE(content_->drop_artifact(request, *first));
  EXPECT_FALSE(content_->artifact_header(request, *first).value());
  std::string read;
  ASSERT_TRUE(content_->read_artifact(*second, 6, [&](std::string_view bytes) {
    read += bytes;
    return Status();
  }));
  EXPECT_EQ(read, "second");
  EXPECT_EQ(content_->read_artifact(*second, 7, [](std::string_view) { return Status(); }).error().kind,
            ErrorKind::kEngine);
  ASSERT_TRUE(content_->drop_artifacts(request));
  EXPECT_FALSE(content_->artifact_header(request, *second).value());
}

/// A removal that a crash interrupted is repeated at the next start, which may have given the id to something new.
TEST_F(ContentTest, ToRemoveAnArtifactAgainHarmsNoNewContentOfItsId) {
  const Uuid request_id = Uuid::random();
  const std::string_view pieces[] = {"old"};
  const ContentId id = content_->put_artifact(request_id, "header", pieces).value();
  ASSERT_TRUE(content_->drop_artifact(request_id, id));
  open();
  const ContentId next = content_->put_artifact(Uuid::random(), "header", pieces).value();
  ASSERT_EQ(next, id);
  ASSERT_TRUE(content_->drop_artifact(request_id, id));
  EXPECT_EQ(artifact(next, 3), "old");
}

TEST_F(ContentTest, RecordsKeepTheirOrderAndTheirRequest) {
  const Uuid one = Uuid::random();
  const Uuid other = Uuid::random();
  std::vector<StoredRecord> records;
  for (uint64_t seq = 0; seq < 300; ++seq) records.push_back({one, seq, fmt::format("r{}", seq)});
  records.push_back({other, 0, "other"});
  ASSERT_TRUE(content_->put_records(records));
  const auto read = content_->records(one).value();
  ASSERT_EQ(read.size(), 300u);
  for (uint64_t seq = 0; seq < 300; ++seq) EXPECT_EQ(read[seq].text, fmt::format("r{}", seq));
  EXPECT_EQ(content_->records(other).value().size(), 1u);
}

TEST(BlobCacheTest, TheLeastRecentlyUsedGoesFirst) {
  BlobCache cache(30, 100);
  const StagedBlob a = staged(std::string(10, 'a'));
  const StagedBlob b = staged(std::string(10, 'b'));
  const StagedBlob c = staged(std::string(10, 'c'));
  const StagedBlob d = staged(std::string(20, 'd'));
  for (const StagedBlob* blob : {&a, &b, &c}) cache.insert(blob->sha256, blob->content);
  EXPECT_EQ(cache.find(a.sha256), a.content);
  cache.insert(d.sha256, d.content);
  EXPECT_FALSE(cache.find(b.sha256));
  EXPECT_FALSE(cache.find(c.sha256));
  EXPECT_TRUE(cache.find(a.sha256));
  EXPECT_TRUE(cache.find(d.sha256));
  cache.erase(d.sha256);
  EXPECT_FALSE(cache.find(d.sha256));
  EXPECT_TRUE(cache.find(a.sha256));
  EXPECT_EQ(d.content->view().value().size(), 20u) << "what is in use stays";
}

TEST(BlobCacheTest, ItsBudgetsHold) {
  BlobCache few(1000, 2);
  std::vector<StagedBlob> blobs;
  for (int i = 0; i < 5; ++i) {
    blobs.push_back(staged(fmt::format("blob {}", i)));
    few.insert(blobs.back().sha256, blobs.back().content);
  }
  EXPECT_FALSE(few.find(blobs[2].sha256));
  EXPECT_TRUE(few.find(blobs[3].sha256));
  EXPECT_TRUE(few.find(blobs[4].sha256));
  BlobCache none(5, 2);
  none.insert(blobs[0].sha256, blobs[0].content);
  EXPECT_FALSE(none.find(blobs[0].sha256)) << "larger than the whole budget";
}

TEST(ProgramTextTest, LongTextsAreCompressed) {
  const std::string text(limits::kProgramCompressFromBytes, 'p');
  const EncodedText encoded = encode_text(text);
  EXPECT_EQ(encoded.codec, Codec::kZstd);
  EXPECT_LT(encoded.bytes.size(), text.size() / 10);
  EXPECT_EQ(decode_text(encoded.codec, encoded.bytes, text.size()).value(), text);
  EXPECT_FALSE(decode_text(encoded.codec, encoded.bytes, text.size() - 1));
  EXPECT_FALSE(decode_text(encoded.codec, encoded.bytes, text.size() + 1));
  EXPECT_FALSE(decode_text(encoded.codec, "no zstd", text.size()));
  EXPECT_FALSE(decode_text(static_cast<Codec>(7), encoded.bytes, text.size()));
  const EncodedText brief = encode_text("short");
  EXPECT_EQ(brief.codec, Codec::kPlain);
  EXPECT_EQ(decode_text(brief.codec, brief.bytes, 5).value(), "short");
}

}  // namespace
}  // namespace kcoral::store
