#include "executor/program_limits.h"

#include <gtest/gtest.h>

#include "executor/frame_fields.h"

namespace kcoral::executor {
namespace {

TEST(ProgramLimits, ComeBackAsTheyWere) {
  ProgramLimits limits;
  limits.work_bytes = 1;
  limits.cpu_seconds = 7;
  auto read = program_limits_from(to_json(limits));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*read, limits);
}

TEST(ProgramLimits, EveryMemberIsNeeded) {
  const auto whole = to_json(ProgramLimits{});
  for (const auto& [name, value] : whole.items()) {
    auto object = whole;
    object.erase(name);
    EXPECT_FALSE(program_limits_from(object).has_value()) << name;
    object[name] = "1";
    EXPECT_FALSE(program_limits_from(object).has_value()) << name;
  }
  EXPECT_FALSE(program_limits_from(nullptr).has_value());
}

TEST(FrameFields, NeverBelieveATypeOrThrow) {
  const nlohmann::json values[] = {nullptr, true, -1, 1u, 1.5, "x", nlohmann::json::array({1}), {{"a", 1}}};
  for (const auto& value : values) {
    const nlohmann::json body{{"f", value}};
    EXPECT_EQ(string_field(body, "f").has_value(), value.is_string());
    EXPECT_EQ(boolean_field(body, "f").has_value(), value.is_boolean());
    EXPECT_EQ(unsigned_field(body, "f").has_value(), value == nlohmann::json(1u));
    EXPECT_EQ(number_field(body, "f").has_value(), value.is_number());
    EXPECT_FALSE(uuid_field(body, "f").has_value());
    EXPECT_FALSE(strings_field(body, "f").has_value());
    EXPECT_FALSE(string_map_field(body, "f").has_value());
    EXPECT_FALSE(string_field(value, "f").has_value());
    EXPECT_FALSE(string_field(body, "g").has_value());
  }
  EXPECT_FALSE(unsigned_field({{"f", 5u}}, "f", 4).has_value());
  EXPECT_EQ(*unsigned_field({{"f", 4u}}, "f", 4), 4U);
  EXPECT_EQ(strings_field({{"f", {"a", "b"}}}, "f")->size(), 2U);
  EXPECT_EQ(string_map_field({{"f", {{"a", "b"}}}}, "f")->at("a"), "b");
}

}  // namespace
}  // namespace kcoral::executor
