#include "executor/lease_ask.h"

#include <gmock/gmock.h>

namespace kcoral::executor {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::vector<int> kSlotDevices{2, 5};

Result<LeaseAsk> read_back(const json& body) { return lease_ask_from(json::parse(body.dump()), kSlotDevices); }

TEST(LeaseAsk, IsReadAsItWasWritten) {
  const LeaseAsk asks[] = {
      {.id = 7, .purpose = LeasePurpose::kProgram, .priority = -3, .devices = {}, .count = 2},
      {.id = 8, .purpose = LeasePurpose::kContext, .priority = -1000, .devices = {5}, .count = 1},
  };
  for (const LeaseAsk& ask : asks) {
    const auto read = read_back(lease_request_frame(ask));
    ASSERT_TRUE(read.has_value()) << read.error().message;
    EXPECT_EQ(read->id, ask.id);
    EXPECT_EQ(read->purpose, ask.purpose);
    EXPECT_EQ(read->priority, ask.priority);
    EXPECT_EQ(read->devices, ask.devices);
    EXPECT_EQ(read->count, ask.count);
  }
}

TEST(LeaseAsk, OfNamedDevicesIsForAsManyAsAreNamed) {
  const auto read = read_back(lease_request_frame({.devices = {2, 5}}));
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->count, 2u);
}

TEST(LeaseAsk, IsRefusedUnlessEveryFieldIsWhatItMustBe) {
  const json good = lease_request_frame({.id = 1, .devices = {2}});
  ASSERT_TRUE(read_back(good).has_value());
  const std::tuple<const char*, json, const char*> cases[] = {
      {"purpose", "programme", "must be \"program\" or \"context\""},
      {"purpose", nullptr, "must be a string"},
      {"lease", -1, "must be an integer from 0 up"},
      {"priority", "high", "must be an integer"},
      {"devices", json::array({3}), "the slot has no device 3"},
      {"devices", json::array({2, 5}), "names 2 devices and counts 1"},
      {"count", 0, "is for nothing"},
      {"count", 3, "at most 2"},
  };
  for (const auto& [field, value, message] : cases) {
    json body = good;
    body[field] = value;
    const auto read = read_back(body);
    ASSERT_FALSE(read.has_value()) << body;
    EXPECT_EQ(read.error().kind, ErrorKind::kEngine);
    EXPECT_THAT(read.error().message, HasSubstr(message)) << body;
    body.erase(field);
    EXPECT_FALSE(read_back(body).has_value()) << body;
  }
}

}  // namespace
}  // namespace kcoral::executor
