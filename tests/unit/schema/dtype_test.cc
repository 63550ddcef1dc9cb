#include "schema/dtype.h"

#include <gtest/gtest.h>

#include <utility>

namespace kcoral::schema {
namespace {

constexpr std::pair<std::string_view, uint32_t> kContract[] = {
    {"bool", 1},     {"uint8", 1},     {"int8", 1},        {"int16", 2},         {"uint16", 2},      {"int32", 4},
    {"uint32", 4},   {"int64", 8},     {"uint64", 8},      {"float16", 2},       {"float32", 4},     {"float64", 8},
    {"bfloat16", 2}, {"complex64", 8}, {"complex128", 16}, {"float8_e4m3fn", 1}, {"float8_e5m2", 1},
};

TEST(DtypeTest, KnowsEveryNameOfTheContractAndItsItemSize) {
  for (const auto& [name, item_bytes] : kContract) {
    const Dtype* const dtype = find_dtype(name);
    ASSERT_NE(dtype, nullptr) << name;
    EXPECT_EQ(dtype->name, name);
    EXPECT_EQ(dtype->item_bytes, item_bytes) << name;
  }
}

TEST(DtypeTest, KnowsNoOther) {
  for (const std::string_view name : {"", "float15", "Float32", "float32 ", "float", "complex32", "torch.float32"}) {
    EXPECT_EQ(find_dtype(name), nullptr) << name;
  }
}

TEST(DtypeTest, NamesAreListedForMessages) {
  EXPECT_EQ(dtype_names(),
            "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 float8_e4m3fn "
            "float8_e5m2 complex64 complex128");
}

TEST(DtypeTest, BytesAreTheProductTimesTheItemSize) {
  const Dtype& half = *find_dtype("float16");
  EXPECT_EQ(tensor_bytes(half, {2, 3}), 12U);
  EXPECT_EQ(tensor_bytes(half, {}), 2U);  // no dimensions: one item
  EXPECT_EQ(tensor_bytes(half, {5, 0, 7}), 0U);
  EXPECT_EQ(tensor_bytes(*find_dtype("complex128"), {1, 1, 3}), 48U);
}

TEST(DtypeTest, OverflowOf63BitsIsFound) {
  const uint64_t two_to_31 = uint64_t{1} << 31;
  EXPECT_EQ(tensor_bytes(*find_dtype("uint8"), {two_to_31, two_to_31}), uint64_t{1} << 62);
  EXPECT_EQ(tensor_bytes(*find_dtype("uint16"), {two_to_31, two_to_31}), std::nullopt);
  EXPECT_EQ(tensor_bytes(*find_dtype("uint8"), {INT64_MAX}), static_cast<uint64_t>(INT64_MAX));
  EXPECT_EQ(tensor_bytes(*find_dtype("uint8"), {uint64_t{1} << 63}), std::nullopt);
  EXPECT_EQ(tensor_bytes(*find_dtype("int64"), {UINT64_MAX}), std::nullopt);
}

TEST(DtypeTest, OverflowDoesNotDependOnWhereAZeroStands) {
  const uint64_t big = uint64_t{1} << 62;
  const Dtype& byte = *find_dtype("uint8");
  EXPECT_EQ(tensor_bytes(byte, {0, big, big}), std::nullopt);
  EXPECT_EQ(tensor_bytes(byte, {big, big, 0}), std::nullopt);
  EXPECT_EQ(tensor_bytes(byte, {0, big}), 0U);
}

}  // namespace
}  // namespace kcoral::schema
