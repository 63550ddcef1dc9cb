// What the tests with a scripted runtime share: a slot whose zygote and runtime do what each test says
// (fake_zygote.py), in the real sandbox. One slot serves the tests of a suite, which must leave it idle; a test that
// breaks a slot makes its own.
#pragma once

#include "tests/unit/executor/slot_harness.h"

namespace kcoral::executor {

/// The text of fake_zygote.py, which says what scripts can use.
inline std::string fake_zygote() {
  std::ifstream file(KCORAL_TEST_SOURCES "/fake_zygote.py");
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

/// A program whose first instruction uploads `script`, which the fake runtime executes; a function of it, its run and a
/// return follow.
inline std::string scripted(const std::string& script) {
  return nlohmann::json{{"instructions",
                         {{{"op", "upload"}, {"kind", "module"}, {"id", "s"}, {"source", script}},
                          {{"op", "get_function"}, {"id", "f"}, {"module", {{"$ref", "s"}}}, {"name", "main"}},
                          {{"op", "run"}, {"id", "x"}, {"fn", {{"$ref", "f"}}}},
                          {{"op", "return"}, {"key", "k"}, {"value", {{"$ref", "x"}}}}}}}
      .dump();
}

/// Goes through those four instructions; `completed()` is left to say.
inline constexpr const char* kAnswer =
    "for i in range(3): started(i)\n"
    "started(3); returned(3, '{\"value\":{\"type\":\"null\"},\"parts\":[]}')\n";

class Scripted : public testing::Test {
 protected:
  using Ending = schema::Outcome::Ending;
  using json = nlohmann::json;

  static void SetUpTestSuite() {
    installation_ = new TemporaryDirectory;
    executable_ = new std::string(install_with_python(installation_->path(), {{"zygote.py", fake_zygote()}}));
    slot_ = make_slot().release();
    ASSERT_TRUE(slot_->start_and_wait());
  }
  static void TearDownTestSuite() {
    delete slot_;
    delete executable_;
    delete installation_;
  }
  /// Without runtimes that stand by, each prepare is that of the program at hand.
  static std::unique_ptr<SlotHarness> make_slot(const std::string& zygote_script = "", size_t standby = 0) {
    return std::make_unique<SlotHarness>([&](ExecutorConfig& config) {
      config.executor_path = *executable_;
      config.standby = standby;
      if (standby == 0) config.devices = {3};  // the fake runtime makes no contexts ahead
      if (!zygote_script.empty()) config.environment["KCORAL_FAKE_ZYGOTE"] = zygote_script;
    });
  }
  /// The error of a run that failed.
  static json error_of(const std::string& script) {
    const RunReport report = slot_->run(scripted(script));
    EXPECT_EQ(report.ending, Ending::kFailed) << report.error_message;
    return report.ending == Ending::kFailed ? members_of(report)["error"] : json();
  }
  static void expect_error(const std::string& script, const std::string& kind, const std::string& message,
                           int index = 0) {
    json error = error_of(script);
    ASSERT_FALSE(error.is_null()) << script;
    EXPECT_EQ(error["kind"], kind) << script << error;
    EXPECT_NE(error["message"].get<std::string>().find(message), std::string::npos) << script << error;
    EXPECT_EQ(error["instruction_index"], index) << script << error;
  }

  static inline TemporaryDirectory* installation_ = nullptr;
  static inline std::string* executable_ = nullptr;
  static inline SlotHarness* slot_ = nullptr;
};

}  // namespace kcoral::executor
