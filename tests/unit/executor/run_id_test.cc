#include "executor/run_id.h"

#include <gtest/gtest.h>

namespace kcoral::executor {
namespace {

TEST(RunId, ComesBackFromAFrame) {
  const RunId run{Uuid::random(), 3};
  const nlohmann::json frame = frame_about(run, "cancel");
  EXPECT_EQ(frame["type"], "cancel");
  auto read = run_id_from(frame);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*read, run);
  EXPECT_NE(*read, (RunId{run.request_id, 2}));
}

TEST(RunId, NeedsBothFields) {
  for (const char* field : {"request_id", "attempt"}) {
    for (const nlohmann::json& value : {nlohmann::json(), nlohmann::json(-1), nlohmann::json("x")}) {
      nlohmann::json frame = frame_about({Uuid::random(), 1}, "cancel");
      frame[field] = value;
      EXPECT_FALSE(run_id_from(frame).has_value()) << frame;
      frame.erase(field);
      EXPECT_FALSE(run_id_from(frame).has_value()) << frame;
    }
  }
}

}  // namespace
}  // namespace kcoral::executor
