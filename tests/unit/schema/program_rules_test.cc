// Every rule of contract section 3 that a program can break before it runs, one row each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schema/program.h"

namespace kcoral::schema {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// What the rows come after: one handle of each sort, instructions 0 to 10.
constexpr std::string_view kPreamble = R"(
  {"op":"upload","id":"module","kind":"module","source":""},
  {"op":"upload","id":"cuda","kind":"module","source":"","language":"cuda"},
  {"op":"upload","id":"tensor","kind":"tensor","blob":"BLOB","dtype":"uint8","shape":[1]},
  {"op":"upload","id":"bytes","kind":"bytes","blob":"BLOB"},
  {"op":"upload","id":"file","kind":"file","blob":"BLOB","path":"data/in"},
  {"op":"upload","id":"library","kind":"library","blob":"BLOB"},
  {"op":"get_function","id":"function","module":{"$ref":"module"},"name":"f"},
  {"op":"get_function","id":"kernel","module":{"$ref":"cuda"},"name":"k"},
  {"op":"get_function","id":"exported","module":{"$ref":"library"},"name":"e"},
  {"op":"run","id":"result","fn":{"$ref":"function"}},
  {"op":"return","key":"returned","value":{"$ref":"result"}},
)";
constexpr int kRowIndex = 11;

std::string replace_blobs(std::string text) {
  const std::string digest(64, 'd');
  for (size_t at = text.find("BLOB"); at != std::string::npos; at = text.find("BLOB", at)) text.replace(at, 4, digest);
  return text;
}

/// The message about `instruction` after the preamble, or "accepted".
std::string verdict(std::string_view instruction) {
  const std::string text = replace_blobs(fmt::format(R"({{"instructions":[{}{}]}})", kPreamble, instruction));
  const auto program = parse_program(text, {});
  if (program) return "accepted";
  EXPECT_EQ(program.error().kind, ErrorKind::kParse);
  return program.error().message;
}

struct Row {
  std::string_view instruction;
  std::string_view message;  // what the message contains
};

void expect_refused(std::initializer_list<Row> rows) {
  for (const Row& row : rows) {
    const std::string message = verdict(row.instruction);
    EXPECT_THAT(message, StartsWith(fmt::format("instructions[{}]", kRowIndex))) << row.instruction;
    EXPECT_THAT(message, HasSubstr(row.message)) << row.instruction;
  }
}

void expect_accepted(std::initializer_list<std::string_view> rows) {
  for (const std::string_view row : rows) EXPECT_EQ(verdict(row), "accepted") << row;
}

TEST(ProgramRulesTest, Shape) {
  expect_refused({
      {R"(5)", "byte"},
      {R"([])", "expected an object, found an array"},
      {R"({})", "field \"op\" is missing; it is one of upload get_function run return"},
      {R"({"op":"delete","id":"x"})",
       "(delete \"x\"): field \"op\": \"delete\" is none of upload get_function run return"},
      {R"({"op":5,"id":"x"})", "field \"op\": must be a string, not an integer"},
      {R"({"op":"","id":"x"})", "field \"op\": \"\" is none of"},
      {R"({"op":"upload get_function"})", "is none of"},
      {R"({"op":"run","op":"run"})", "(run): byte"},
      {R"({"op":"run","op":"run"})", "the key \"op\" is doubled"},
      {R"({"op":"run","id":"x","fn":{"$ref":"function","$ref":"function"}})", "field \"fn\": byte"},
      {R"({"op":"run","id":"x","args":[{"a":1,"\u0061":2}]})", "field \"args\": byte"},
      {R"({"op":"run","id":"x","args":[1e400]})", "a number must be finite as a double"},
      {R"({"op":"run","id":"x","args":[NaN]})", "expected a value"},
  });
}

TEST(ProgramRulesTest, UnknownAndMissingFields) {
  expect_refused({
      {R"({"op":"upload","id":"x","kind":"module","source":"","foo":1})",
       "(upload \"x\"): unknown field \"foo\"; accepted in a module upload: op, id, kind, source, language (optional)"},
      {R"({"op":"upload","id":"x","kind":"bytes","blob":"BLOB","path":"a"})", "unknown field \"path\""},
      {R"({"op":"upload","id":"x","kind":"bytes","blob":"BLOB","language":"python"})", "unknown field \"language\""},
      {R"({"op":"upload","id":"x","kind":"library","blob":"BLOB","source":""})", "unknown field \"source\""},
      {R"({"op":"upload","id":"x","kind":"tensor","blob":"BLOB","dtype":"uint8","shape":[1],"key":"k"})",
       "unknown field \"key\""},
      {R"({"op":"get_function","id":"x","module":{"$ref":"module"},"name":"f","args":[]})", "unknown field \"args\""},
      {R"({"op":"run","id":"x","fn":{"$ref":"function"},"kwargs":{}})", "unknown field \"kwargs\""},
      {R"({"op":"return","key":"x","id":"x","value":{"$ref":"result"}})", "unknown field \"id\""},
      {R"({"op":"return","key":"x","value":{"$ref":"result"},"dtype":1})", "unknown field \"dtype\""},
      {R"({"op":"upload","id":"x"})",
       "field \"kind\" is missing; an upload's is one of module tensor bytes file library"},
      {R"({"op":"upload","id":"x","kind":"folder"})", "field \"kind\": \"folder\" is none of module tensor"},
      {R"({"op":"upload","id":"x","kind":"module"})", "field \"source\" is missing"},
      {R"({"op":"upload","kind":"module","source":""})", "(upload): field \"id\" is missing"},
      {R"({"op":"upload","id":"x","kind":"tensor","blob":"BLOB","dtype":"uint8"})", "field \"shape\" is missing"},
      {R"({"op":"upload","id":"x","kind":"tensor","blob":"BLOB","shape":[]})", "field \"dtype\" is missing"},
      {R"({"op":"upload","id":"x","kind":"bytes"})", "field \"blob\" is missing"},
      {R"({"op":"upload","id":"x","kind":"file","blob":"BLOB"})", "field \"path\" is missing"},
      {R"({"op":"get_function","id":"x","name":"f"})", "field \"module\" is missing"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"module"}})", "field \"name\" is missing"},
      {R"({"op":"run","id":"x"})", "field \"fn\" is missing"},
      {R"({"op":"return","value":{"$ref":"result"}})", "field \"key\" is missing"},
      {R"({"op":"return","key":"x"})", "a return has either \"value\" or \"kind\" and \"path\""},
      {R"({"op":"return","key":"x","value":{"$ref":"result"},"kind":"file","path":"a"})", "a return has either"},
      {R"({"op":"return","key":"x","kind":"file"})", "field \"path\" is missing"},
      {R"({"op":"return","key":"x","path":"a"})", "field \"kind\" is missing"},
  });
}

TEST(ProgramRulesTest, ManyUnknownFieldsAreStillNamed) {
  std::string text = R"({"op":"run")";
  for (int i = 0; i < 100; ++i) text += fmt::format(R"(,"f{}":0)", i);
  EXPECT_THAT(verdict(text + "}"), HasSubstr("unknown field \"f0\"; accepted in a run: op, id, fn, args (optional)"));
}

TEST(ProgramRulesTest, IdsAndKeys) {
  const std::string longest(limits::kIdBytesMax, 'n');
  const auto upload = [](const std::string& id) {
    return fmt::format(R"({{"op":"upload","id":"{}","kind":"module","source":""}})", id);
  };
  EXPECT_EQ(verdict(upload(longest)), "accepted");
  const std::string too_long = verdict(upload(longest + "n"));
  EXPECT_THAT(too_long, HasSubstr("has 1025 bytes; at most 1024 are accepted"));
  EXPECT_LT(too_long.size(), 400U) << "long ids are shortened";
  expect_refused({
      {R"({"op":"upload","id":"","kind":"module","source":""})", "field \"id\": must not be empty"},
      {R"({"op":"upload","id":7,"kind":"module","source":""})", "field \"id\": must be a string, not an integer"},
      {R"({"op":"upload","id":"tensor","kind":"module","source":""})",
       "(upload \"tensor\"): field \"id\": \"tensor\" is the id of an earlier instruction"},
      {R"({"op":"run","id":"\u0074ensor","fn":{"$ref":"function"}})", "is the id of an earlier instruction"},
      {R"({"op":"return","key":"","value":{"$ref":"result"}})", "field \"key\": must not be empty"},
      {R"({"op":"return","key":null,"value":{"$ref":"result"}})", "field \"key\": must be a string, not null"},
      {R"({"op":"return","key":"returned","value":{"$ref":"result"}})",
       "(return \"returned\"): field \"key\": \"returned\" is the key of an earlier return"},
  });
  expect_accepted({
      R"({"op":"return","key":"result","value":{"$ref":"result"}})",  // keys and ids are names of their own
      R"({"op":"upload","id":"returned","kind":"module","source":""})",
      R"({"op":"upload","id":" \u0000é","kind":"module","source":""})",
  });
}

TEST(ProgramRulesTest, References) {
  expect_refused({
      {R"({"op":"run","id":"x","fn":{"$ref":"later"}},{"op":"run","id":"later","fn":{"$ref":"function"}})",
       "field \"fn\": refers to \"later\", which no earlier instruction defines"},
      {R"({"op":"run","id":"x","fn":{"$ref":"x"}})", "refers to \"x\", which no earlier instruction defines"},
      {R"({"op":"run","id":"x","fn":{"$ref":""}})", "refers to \"\", which"},
      {R"({"op":"run","id":"x","fn":{"$ref":"returned"}})", "refers to \"returned\", which"},
      {R"({"op":"run","id":"x","fn":"function"})",
       "field \"fn\": must be a reference {\"$ref\": \"id\"}, not a string"},
      {R"({"op":"run","id":"x","fn":{}})", "an object of exactly the shape"},
      {R"({"op":"run","id":"x","fn":{"$ref":5}})", "an object of exactly the shape"},
      {R"({"op":"run","id":"x","fn":{"$ref":"function","x":1}})", "an object of exactly the shape"},
      {R"({"op":"run","id":"x","fn":{"x":1,"$ref":"function"}})", "an object of exactly the shape"},
      {R"({"op":"run","id":"x","fn":{"ref":"function"}})", "an object of exactly the shape"},
      {R"({"op":"run","id":"x","fn":{"$ref":"function"},"args":[1,{"$ref":"nobody"}]})",
       "field \"args\": element 1 refers to \"nobody\", which no earlier instruction defines"},
      {R"({"op":"run","id":"x","fn":{"$ref":"function"},"args":[{"\u0024ref":"x"}]})",
       "element 0 refers to \"x\", which"},
      {R"({"op":"run","id":"x","fn":{"$ref":"function"},"args":[ { "$ref" : "nobody" } ]})", "element 0 refers to"},
      {R"({"op":"run","id":"x","fn":{"$ref":"function"},"args":[{},{"a":{"$ref":"b"}},{"\u0024\u0072ef":"nobody"}]})",
       "element 2 refers to"},
      {R"({"op":"return","key":"x","value":{"$ref":"nobody"}})", "field \"value\": refers to \"nobody\", which"},
      {R"({"op":"return","key":"x","value":5})", "field \"value\": must be a reference"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"nobody"},"name":"f"})", "field \"module\": refers to"},
  });
}

TEST(ProgramRulesTest, Modules) {
  expect_refused({
      {R"({"op":"upload","id":"x","kind":"module","source":5})", "field \"source\": must be a string, not an integer"},
      {R"({"op":"upload","id":"x","kind":"module","source":"\ud800"})", "field \"source\": byte"},
      {R"({"op":"upload","id":"x","kind":"module","source":"","language":"c"})",
       "field \"language\": \"c\" is none of python cuda"},
      {R"({"op":"upload","id":"x","kind":"module","source":"","language":null})", "must be a string, not null"},
  });
  expect_accepted({R"({"op":"upload","id":"x","kind":"module","source":"x = 1\u0000","language":"python"})"});
}

TEST(ProgramRulesTest, Blobs) {
  expect_refused({
      {R"({"op":"upload","id":"x","kind":"bytes","blob":"abc"})",
       "field \"blob\": \"abc\" is no SHA-256 digest of 64 lowercase hexadecimal digits"},
      {R"({"op":"upload","id":"x","kind":"bytes","blob":"DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD)"
       R"(DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD"})",
       "is no SHA-256 digest"},
      {R"({"op":"upload","id":"x","kind":"library","blob":null})", "field \"blob\": must be a string, not null"},
      {R"({"op":"upload","id":"x","kind":"file","blob":{},"path":"a"})",
       "field \"blob\": must be a string, not an object"},
  });
}

TEST(ProgramRulesTest, Tensors) {
  const auto tensor = [](std::string_view dtype, std::string_view shape) {
    return fmt::format(R"({{"op":"upload","id":"x","kind":"tensor","blob":"{:064x}","dtype":{},"shape":{}}})", 7, dtype,
                       shape);
  };
  EXPECT_THAT(verdict(tensor("\"float15\"", "[1]")),
              HasSubstr("(upload \"x\"): field \"dtype\": \"float15\" is none of bool uint8 int8"));
  EXPECT_THAT(verdict(tensor("5", "[1]")), HasSubstr("field \"dtype\": must be a string"));
  for (const std::string_view shape :
       {"[-1]", "[1.0]", "[1e0]", "[true]", "[null]", "[\"1\"]", "[[1]]", "[9223372036854775808]"}) {
    EXPECT_THAT(verdict(tensor("\"uint8\"", shape)),
                HasSubstr("field \"shape\": element 0 must be an integer from 0 to"));
  }
  EXPECT_THAT(verdict(tensor("\"uint8\"", "[1,2,-1]")), HasSubstr("element 2 must be"));
  EXPECT_THAT(verdict(tensor("\"uint8\"", "5")), HasSubstr("field \"shape\": must be an array, not an integer"));
  EXPECT_THAT(verdict(tensor("\"uint8\"", "{}")), HasSubstr("must be an array, not an object"));
  EXPECT_THAT(verdict(tensor("\"int16\"", "[4611686018427387904]")), HasSubstr("overflows 63 bits"));
  EXPECT_THAT(verdict(tensor("\"int8\"", "[4294967296,4294967296,0]")), HasSubstr("overflows 63 bits"));
  for (const std::string_view shape :
       {"[]", "[0]", "[3,0,2]", "[-0]", "[4611686018427387904]", "[0,4611686018427387904]"}) {
    EXPECT_EQ(verdict(tensor("\"uint8\"", shape)), "accepted") << shape;
  }
  std::string ones = "[1";
  for (size_t i = 1; i < limits::kTensorDimensionsMax; ++i) ones += ",1";
  EXPECT_EQ(verdict(tensor("\"uint8\"", ones + "]")), "accepted");
  EXPECT_THAT(verdict(tensor("\"uint8\"", ones + ",1]")), HasSubstr("has more than 64 dimensions"));
}

TEST(ProgramRulesTest, Files) {
  const auto file = [](std::string_view path) {
    return fmt::format(R"({{"op":"upload","id":"x","kind":"file","blob":"BLOB","path":{}}})", path);
  };
  const std::pair<std::string_view, std::string_view> refused[] = {
      {R"("")", "is empty"},
      {R"("/etc/passwd")", "is absolute"},
      {R"("a/../b")", "has a .. component"},
      {R"("a\\b")", "contains a backslash"},
      {R"("a\u0000")", "contains a NUL character"},
      {R"(".")", "names the working directory itself"},
      {R"(5)", "must be a string"},
      {R"({"$ref":"file"})", "must be a string, not an object"},
      {R"("data/in")", "the path \"data/in\" is named twice"},
      {R"("./data//in")", "the path \"data/in\" is named twice"},
      {R"("data")", "the path \"data\" is a directory of \"data/in\""},
      {R"("data/in/x")", "the path \"data/in\" is a directory of \"data/in/x\""},
  };
  for (const auto& [path, message] : refused) {
    EXPECT_THAT(verdict(file(path)), StartsWith("instructions[11] (upload \"x\"): field \"path\": ")) << path;
    EXPECT_THAT(verdict(file(path)), HasSubstr(message)) << path;
  }
  for (const std::string_view path : {R"("data/in2")", R"("data.in")", R"("é")"}) {
    EXPECT_EQ(verdict(file(path)), "accepted") << path;
  }
}

TEST(ProgramRulesTest, GetFunction) {
  expect_refused({
      {R"({"op":"get_function","id":"x","module":{"$ref":"bytes"},"name":"f"})",
       "field \"module\": \"bytes\" is bytes; it must be a module or a library upload"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"tensor"},"name":"f"})", "is a tensor; it must be"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"file"},"name":"f"})", "is a file; it must be"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"function"},"name":"f"})", "is a function; it must be"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"result"},"name":"f"})", "is a result; it must be"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"module"},"name":""})", "field \"name\": must not be empty"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"module"},"name":1})", "field \"name\": must be a string"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"module"},"name":"f","cpu_only":1})",
       "field \"cpu_only\": must be a boolean, not an integer"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"module"},"name":"f","cpu_only":null})", "must be a boolean"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"cuda"},"name":"main"})",
       "field \"name\": \"main\": a CUDA function's name must be an identifier other than main"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"cuda"},"name":"1k"})", "must be an identifier"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"cuda"},"name":"a b"})", "must be an identifier"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"cuda"},"name":"ns::k"})", "must be an identifier"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"cuda"},"name":"é"})", "must be an identifier"},
      {R"({"op":"get_function","id":"x","module":{"$ref":"cuda"},"name":"k\n"})", "must be an identifier"},
  });
  expect_accepted({
      R"({"op":"get_function","id":"x","module":{"$ref":"module"},"name":"main"})",
      R"({"op":"get_function","id":"x","module":{"$ref":"module"},"name":"é b","cpu_only":true})",
      R"({"op":"get_function","id":"x","module":{"$ref":"library"},"name":"main","cpu_only":false})",
      R"({"op":"get_function","id":"x","module":{"$ref":"cuda"},"name":"_Kernel_1"})",
      R"({"op":"get_function","id":"x","module":{"$ref":"cuda"},"name":"main_"})",
  });
}

TEST(ProgramRulesTest, Run) {
  expect_refused({
      {R"({"op":"run","id":"x","fn":{"$ref":"function"},"args":{}})",
       "field \"args\": must be an array, not an object"},
      {R"({"op":"run","id":"x","fn":{"$ref":"function"},"args":null})", "field \"args\": must be an array, not null"},
      {R"({"op":"run","id":"x","fn":{"$ref":"function"},"args":[1,]})", "field \"args\": byte"},
  });
  // Whether a handle can be called shows when it is called: that is a runtime error of section 6.
  for (const std::string_view fn :
       {"module", "cuda", "tensor", "bytes", "file", "library", "function", "kernel", "exported", "result"}) {
    EXPECT_EQ(verdict(fmt::format(R"({{"op":"run","id":"x","fn":{{"$ref":"{0}"}},"args":[{{"$ref":"{0}"}}]}})", fn)),
              "accepted");
  }
}

TEST(ProgramRulesTest, ReturnValue) {
  for (const std::string_view handle : {"tensor", "bytes", "file", "result"}) {
    EXPECT_EQ(verdict(fmt::format(R"({{"op":"return","key":"x","value":{{"$ref":"{}"}}}})", handle)), "accepted");
  }
  for (const std::string_view handle : {"module", "cuda", "library", "function", "kernel", "exported"}) {
    EXPECT_THAT(verdict(fmt::format(R"({{"op":"return","key":"x","value":{{"$ref":"{}"}}}})", handle)),
                HasSubstr("modules, libraries and functions cannot be returned"));
  }
}

TEST(ProgramRulesTest, ReturnPath) {
  for (const std::string_view kind : {"file", "folder"}) {
    for (const std::string_view path :
         {R"("a/b")", R"("./a")", R"({"$ref":"file"})", R"({"$ref":"result"})", R"({"$ref":"function"})"}) {
      EXPECT_EQ(verdict(fmt::format(R"({{"op":"return","key":"x","kind":"{}","path":{}}})", kind, path)), "accepted");
    }
  }
  for (const std::string_view handle : {"module", "cuda", "tensor", "bytes", "library", "kernel", "exported"}) {
    EXPECT_THAT(verdict(fmt::format(R"({{"op":"return","key":"x","kind":"file","path":{{"$ref":"{}"}}}})", handle)),
                HasSubstr("it cannot be a path string"));
  }
  expect_refused({
      {R"({"op":"return","key":"x","kind":"value","path":"a"})", "field \"kind\": \"value\" is none of file folder"},
      {R"({"op":"return","key":"x","kind":"file","path":"/a"})", "field \"path\": the path \"/a\" is absolute"},
      {R"({"op":"return","key":"x","kind":"folder","path":"."})", "names the working directory itself"},
      {R"({"op":"return","key":"x","kind":"folder","path":5})", "must be a string or a reference"},
      {R"({"op":"return","key":"x","kind":"folder","path":{"$ref":"nobody"}})", "refers to \"nobody\""},
      {R"({"op":"return","key":"x","kind":"folder","path":{}})", "an object of exactly the shape"},
  });
}

TEST(ProgramRulesTest, ErrorsBetweenInstructionsNameTheList) {
  const auto program =
      parse_program(R"({"instructions":[{"op":"upload","id":"m","kind":"module","source":""} 5]})", {});
  ASSERT_FALSE(program);
  EXPECT_THAT(program.error().message, StartsWith("instructions: byte 70: expected ',' or ']'"));
}

}  // namespace
}  // namespace kcoral::schema
