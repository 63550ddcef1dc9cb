#include "executor/output_frame.h"

#include <gtest/gtest.h>

namespace kcoral::executor {
namespace {

using nlohmann::json;

TEST(OutputFrame, IsReadAsItWasWritten) {
  const RunId run{Uuid::random(), 3};
  for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
    const json body = json::parse(output_frame(run, stream).dump());
    EXPECT_EQ(body["type"], "output");
    EXPECT_EQ(*run_id_from(body), run);
    EXPECT_EQ(*output_stream_from(body), stream);
  }
}

TEST(OutputFrame, ThereAreTwoStreams) {
  for (const char* text : {R"({})", R"({"stream":1})", R"({"stream":"stdin"})", R"({"stream":""})"}) {
    EXPECT_FALSE(output_stream_from(json::parse(text))) << text;
  }
}

}  // namespace
}  // namespace kcoral::executor
