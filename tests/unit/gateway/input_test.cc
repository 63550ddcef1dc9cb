#include "gateway/input.h"

#include <gtest/gtest.h>

namespace kcoral::gateway {
namespace {

TEST(Input, KeepsWhatIsLeftWhenTheBufferIsUsedAgain) {
  std::string buffer = "first|sec";
  Input input;
  input.add(buffer);
  input.consume(6);
  input.keep();
  buffer.assign(9, 'x');
  EXPECT_EQ(input.view(), "sec");
  input.add("ond|");
  EXPECT_EQ(input.view(), "second|");
  input.consume(7);
  EXPECT_TRUE(input.empty());
}

TEST(Input, DoesNotGrowWithWhatWasConsumed) {
  Input input;
  for (int i = 0; i < 100'000; ++i) {
    input.keep();
    input.add("0123456789ab");
    input.consume(i == 0 ? 6 : 12);
  }
  input.keep();
  EXPECT_EQ(input.view(), "6789ab");
}

}  // namespace
}  // namespace kcoral::gateway
