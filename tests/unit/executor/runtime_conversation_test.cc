// The order of a runtime's frames (scripted_runtime_test.cc has each malformed one, through real sockets).
#include "executor/supervisor/runtime_conversation.h"

#include <gtest/gtest.h>

#include <random>

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
  EXPECT_EQ(*take({{"type", "ready"}}), Meaning::kReady);
  EXPECT_FALSE(conversation.has_started());
  for (unsigned index = 0; index < 4; ++index) {
    EXPECT_EQ(conversation.current(), index);
    EXPECT_EQ(*take({{"type", "started"}, {"index", index}}), Meaning::kProgress);
    clock.advance(std::chrono::microseconds(1500));
    if (index == 3) {
      EXPECT_EQ(*take({{"type", "returned"}, {"index", 3u}}, R"({"value":{"type":"integer","value":7},"parts":[]})"),
                Meaning::kProgress);
    }
    EXPECT_EQ(*take({{"type", "finished"}, {"index", index}}), Meaning::kProgress);
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
  ASSERT_TRUE(take({{"type", "ready"}}).has_value());
  ASSERT_TRUE(take({{"type", "started"}, {"index", 0u}}).has_value());
  EXPECT_EQ(*take({{"type", "failed"}, {"index", 0u}}, R"({"kind":"parse","message":"m","traceback":"t"})"),
            Meaning::kOver);
  const schema::InstructionError& error = *conversation.error();
  EXPECT_EQ(error.kind, schema::InstructionErrorKind::kParse);
  EXPECT_EQ(error.message, "m");
  EXPECT_EQ(error.traceback, "t");
  EXPECT_EQ(error.instruction_op, "upload");
  EXPECT_EQ(error.instruction_id, "m");
  EXPECT_FALSE(take({{"type", "finished"}, {"index", 0u}}).has_value());
}

TEST_F(RuntimeConversationTest, SetUpThatFailsIsTheEnvironments) {
  const auto refused = take({{"type", "setup_failed"}, {"message", "no /proc"}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kEnvironment);
  EXPECT_NE(refused.error().message.find("no /proc"), std::string::npos);
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
  const char* types[] = {"ready", "started", "finished", "returned", "failed", "completed", "lease_request"};
  for (int round = 0; round < 3000; ++round) {
    size_t finished = 0, values = 0;
    bool is_over = false;
    RuntimeConversation conversation(program, clock, [&](const nlohmann::ordered_json& record) {
      finished += record["event"] == "instruction_finished";
      values += record["event"] == "returned";
    });
    uint32_t next = 0;
    for (int step = 0; step < 40; ++step) {
      // Mostly what comes next in a good conversation, so that some rounds get far.
      std::string type = types[random() % 7];
      const uint32_t index = random() % 20 == 0 ? random() % 6 : next;
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
      if (type == "finished") ++next;
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
