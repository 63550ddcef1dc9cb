// The order of a runtime's frames (scripted_runtime_test.cc has each malformed one, through real sockets).
#include "executor/supervisor/runtime_conversation.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <random>

#include "schema/limits.h"

namespace kcoral::executor {
namespace {

using nlohmann::json;
using Meaning = RuntimeConversation::Meaning;

schema::Program make_program() {
  const auto ref = [](const char* id) { return json{{"$ref", id}}; };
  const json text{{"instructions",
                   {{{"op", "upload"}, {"kind", "module"}, {"id", "m"}, {"source", ""}},
                    {{"op", "get_function"}, {"id", "f"}, {"module", ref("m")}, {"name", "main"}},
                    {{"op", "run"}, {"id", "r"}, {"fn", ref("f")}},
                    {{"op", "return"}, {"key", "k"}, {"value", ref("r")}}}}};
  auto program = schema::parse_program(text.dump(), {});
  KCORAL_CHECK(program.has_value());
  return *program;
}

Frame frame_of(const json& body, std::string_view content = {}) {
  Frame frame{body, {}};
  if (!content.empty()) {
    auto memory = SealedMemory::copy_of(content);
    KCORAL_CHECK(memory.has_value());
    frame.fds.emplace_back(::dup((*memory)->fd()));
  }
  return frame;
}

class RuntimeConversationTest : public testing::Test {
 protected:
  Result<Meaning> take(const json& body, std::string_view content = {}) {
    return conversation.take(frame_of(body, content));
  }

  const schema::Program program = make_program();
  FakeClock clock;
  std::vector<std::string> records;
  RuntimeConversation conversation{program, clock,
                                   [this](const nlohmann::ordered_json& record) { records.push_back(record.dump()); }};
};

TEST_F(RuntimeConversationTest, RecordsEachStepWithItsTime) {
  EXPECT_FALSE(conversation.has_started());
  for (unsigned index = 0; index < 4; ++index) {
    EXPECT_EQ(*take({{"type", "started"}, {"index", index}}), Meaning::kProgress);
    EXPECT_EQ(conversation.current(), index);
    clock.advance(std::chrono::microseconds(1500));
    if (index == 3) {
      EXPECT_EQ(*take({{"type", "returned"}, {"index", 3u}}, R"({"value":{"type":"integer","value":7},"parts":[]})"),
                Meaning::kProgress);
    }
  }
  EXPECT_EQ(*take({{"type", "completed"}}), Meaning::kOver);
  EXPECT_FALSE(take({{"type", "completed"}}).has_value());
  EXPECT_EQ(conversation.error(), std::nullopt);
  ASSERT_EQ(records.size(), 9U);
  EXPECT_EQ(records[0], R"({"event":"instruction_started","index":0,"op":"upload","id":"m"})");
  EXPECT_EQ(records[1], R"({"event":"instruction_finished","index":0,"op":"upload","id":"m","ms":1.5})");
  EXPECT_EQ(records[6], R"({"event":"instruction_started","index":3,"op":"return","id":null})");
  EXPECT_EQ(records[7], R"({"event":"returned","key":"k","sha256":")" +
                            Sha256::of(R"({"type":"integer","value":7})").hex() + R"(","bytes":28})");
  EXPECT_EQ(conversation.results_summary(), R"([{"key":"k","type":"integer","size":28}])");
}

TEST_F(RuntimeConversationTest, FailureNamesItsInstruction) {
  ASSERT_TRUE(take({{"type", "started"}, {"index", 0u}}).has_value());
  EXPECT_EQ(*take({{"type", "failed"}, {"index", 0u}}, R"({"kind":"parse","message":"m","traceback":"t"})"),
            Meaning::kOver);
  const schema::InstructionError& error = *conversation.error();
  EXPECT_EQ(error.kind, schema::InstructionErrorKind::kParse);
  EXPECT_EQ(error.message, "m");
  EXPECT_EQ(error.traceback, "t");
  EXPECT_EQ(error.instruction_op, "upload");
  EXPECT_EQ(error.instruction_id, "m");
  EXPECT_FALSE(take({{"type", "started"}, {"index", 1u}}).has_value());
}

TEST_F(RuntimeConversationTest, GpuAccessSaysWhatWasCalledAndWhere) {
  ASSERT_TRUE(take({{"type", "started"}, {"index", 0u}}).has_value());
  EXPECT_EQ(*take({{"type", "failed"}, {"index", 0u}},
                  R"({"kind":"gpu_access","message":"m","traceback":"","cuda_call":"cuInit","location":"a.py:3"})"),
            Meaning::kOver);
  const schema::InstructionError& error = *conversation.error();
  EXPECT_EQ(error.kind, schema::InstructionErrorKind::kGpuAccess);
  ASSERT_TRUE(error.gpu_access.has_value());
  EXPECT_EQ(error.gpu_access->cuda_call, "cuInit");
  EXPECT_EQ(error.gpu_access->location, "a.py:3");
  EXPECT_EQ(error.gpu_access->interfered_request_id, std::nullopt);
}

TEST_F(RuntimeConversationTest, WhatGpuAccessSaysIsCheckedAndNoOtherKindSaysIt) {
  const std::string access = R"({"kind":"gpu_access","message":"m","traceback":"")";
  const std::string call = R"(,"cuda_call":"cuInit")", location = R"(,"location":"a.py:3")";
  const std::pair<std::string, std::string> cases[] = {
      {access + "}", "says what was called, and where"},
      {access + call + "}", "says what was called, and where"},
      {access + location + "}", "says what was called, and where"},
      {access + R"(,"cuda_call":"")" + location + "}", "a CUDA call of 0 bytes"},
      {access + R"(,"cuda_call":")" + std::string(257, 'x') + '"' + location + "}", "a CUDA call of 257 bytes"},
      {access + call + R"(,"location":")" + std::string(4097, 'x') + "\"}", "at a location of 4097"},
      {access + call + R"(,"location":null})", "malformed"},
      {access + call + location + R"(,"interfered_request_id":"x"})", "no member \"interfered_request_id\""},
      {R"({"kind":"runtime","message":"m","traceback":"")" + call + "}", "of the kind runtime, and says where"},
      {R"({"kind":"runtime","message":"m","traceback":"")" + location + "}", "of the kind runtime, and says where"},
  };
  for (const auto& [document, message] : cases) {
    RuntimeConversation fresh(program, clock, [](const nlohmann::ordered_json&) {});
    ASSERT_TRUE(fresh.take(frame_of({{"type", "started"}, {"index", 0u}})).has_value());
    const auto taken = fresh.take(frame_of({{"type", "failed"}, {"index", 0u}}, document));
    ASSERT_FALSE(taken.has_value()) << document;
    EXPECT_EQ(taken.error().kind, ErrorKind::kEngine);
    EXPECT_NE(taken.error().message.find(message), std::string::npos) << taken.error().message;
  }
}

TEST_F(RuntimeConversationTest, WhatComesTooEarlyDoesNotEndTheInstructionThatRuns) {
  ASSERT_TRUE(take({{"type", "started"}, {"index", 0u}}).has_value());
  EXPECT_FALSE(take({{"type", "completed"}}).has_value());
  EXPECT_FALSE(take({{"type", "started"}, {"index", 2u}}).has_value());
  EXPECT_FALSE(take({{"type", "started"}, {"index", 0u}}).has_value());
  EXPECT_EQ(conversation.current(), 0U);
  EXPECT_EQ(records.size(), 1U) << records.back();
}

TEST_F(RuntimeConversationTest, TextOfTheProgramIsShortenedInMessages) {
  const std::string longest(60000, 'x');
  const std::pair<json, std::string> cases[] = {
      {{{"type", longest}, {"index", 0u}}, ""},
      {{{"type", "failed"}, {"index", 0u}}, R"({")" + longest + R"(":""})"},
      {{{"type", "failed"}, {"index", 0u}}, R"({"kind":")" + longest + R"(","message":"","traceback":""})"},
  };
  ASSERT_TRUE(take({{"type", "started"}, {"index", 0u}}).has_value());
  for (const auto& [body, content] : cases) {
    const auto taken = take(body, content);
    ASSERT_FALSE(taken.has_value());
    EXPECT_EQ(taken.error().kind, ErrorKind::kEngine);
    EXPECT_LT(taken.error().message.size(), 400U);
  }
}

/// What a program may return is counted over all its returns: these programs return twice.
class ReturnsTest : public testing::Test {
 protected:
  static schema::Program make_returning_program() {
    const auto returned = [](const char* key) {
      return json{{"op", "return"}, {"key", key}, {"kind", "folder"}, {"path", key}};
    };
    auto program = schema::parse_program(json{{"instructions", {returned("a"), returned("b")}}}.dump(), {});
    KCORAL_CHECK(program.has_value());
    return *program;
  }
  static UniqueFd sealed_zeros(uint64_t bytes) {
    UniqueFd fd(::memfd_create("zeros", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    KCORAL_CHECK(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
    KCORAL_CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) == 0);
    return fd;
  }

  /// A return's `started`, then its value with `data_bytes` of data, most of which no part may name.
  Result<Meaning> give(unsigned index, const std::string& document, uint64_t data_bytes) {
    EXPECT_TRUE(conversation.take(frame_of({{"type", "started"}, {"index", index}})).has_value());
    Frame frame = frame_of({{"type", "returned"}, {"index", index}}, document);
    frame.fds.push_back(sealed_zeros(data_bytes));
    return conversation.take(std::move(frame));
  }
  void expect_serialization_error(const Result<Meaning>& taken, const std::string& message) {
    ASSERT_TRUE(taken.has_value()) << taken.error().message;
    ASSERT_EQ(*taken, Meaning::kOver);
    EXPECT_EQ(conversation.error()->kind, schema::InstructionErrorKind::kSerialization);
    EXPECT_NE(conversation.error()->message.find(message), std::string::npos) << conversation.error()->message;
  }
  /// A folder of `count` empty files.
  static std::string folder_of(size_t count) {
    std::string files, pieces;
    for (size_t i = 0; i < count; ++i) {
      const char* comma = i > 0 ? "," : "";
      files += fmt::format(R"({}"f{:07}":{{"type":"file","size":0,"part":{}}})", comma, i, i);
      pieces += fmt::format("{}[0,0]", comma);
    }
    return R"({"value":{"type":"folder","files":{)" + files + R"(},"directories":[]},"parts":[)" + pieces + "]}";
  }

  const schema::Program program = make_returning_program();
  FakeClock clock;
  RuntimeConversation conversation{program, clock, [](const nlohmann::ordered_json&) {}};
};

TEST_F(ReturnsTest, TooManyPartsOverAllReturnsAreTheProgramsFault) {
  const size_t most = limits::kPartsMax - 10;
  ASSERT_EQ(*give(0, folder_of(most), 0), Meaning::kProgress);
  expect_serialization_error(give(1, folder_of(11), 0), "at most 65536 parts");
  EXPECT_EQ(conversation.take_parts().size(), most);
}

TEST_F(ReturnsTest, TooManyPartsInOneReturnAreTheProgramsFault) {
  expect_serialization_error(give(0, folder_of(limits::kPartsMax + 1), 0), "at most 65536 parts");
}

TEST_F(ReturnsTest, BytesAreCountedOverAllReturns) {
  const uint64_t most = limits::kReturnedBytesMax - 1000;  // room for the text; nothing of the data is ever touched
  const std::string empty = R"({"value":{"type":"folder","files":{},"directories":[]},"parts":[]})";
  ASSERT_EQ(*give(0, empty, most), Meaning::kProgress);
  expect_serialization_error(give(1, empty, 1000), "at most 1073741824 in all");
}

TEST(Describe, NamesInstructionsForPeople) {
  const schema::Program program = make_program();
  EXPECT_EQ(describe(program, 2), "instructions[2] (run \"r\")");
  EXPECT_EQ(describe(program, 3), "instructions[3] (return \"k\")");
}

TEST(RuntimeConversation, CompletesOnlyAfterEveryInstructionWhateverIsSaid) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const schema::Program program = make_program();
  FakeClock clock;
  const char* types[] = {"ready", "started", "returned", "failed", "completed", "lease_request"};
  for (int round = 0; round < 3000; ++round) {
    size_t finished = 0, values = 0;
    bool is_over = false;
    RuntimeConversation conversation(program, clock, [&](const nlohmann::ordered_json& record) {
      finished += record["event"] == "instruction_finished";
      values += record["event"] == "returned";
    });
    uint32_t next = 0;  // to be started
    for (int step = 0; step < 40; ++step) {
      // Mostly what comes next in a good conversation, so that some rounds get far.
      std::string type = types[random() % 6];
      const uint32_t due = type == "started" || next == 0 ? next : next - 1;
      const uint32_t index = random() % 20 == 0 ? random() % 6 : due;
      const auto taken =
          conversation.take(frame_of({{"type", type}, {"index", index}},
                                     type == "returned" ? R"({"value":{"type":"null"},"parts":[]})"
                                                        : R"({"kind":"runtime","message":"","traceback":""})"));
      if (!taken) {
        EXPECT_NE(taken.error().message, "");
        // In the real thing this is the end; here it may go on, and must still keep its order.
        continue;
      }
      ASSERT_FALSE(is_over) << "a frame was taken after the end";
      if (type == "started") ++next;
      if (*taken == Meaning::kOver) is_over = true;
      if (type == "completed") {
        EXPECT_EQ(finished, program.instructions.size());
        EXPECT_EQ(values, 1U);
        EXPECT_EQ(conversation.take_returns().size(), 1U);
      }
    }
  }
}

}  // namespace
}  // namespace kcoral::executor
