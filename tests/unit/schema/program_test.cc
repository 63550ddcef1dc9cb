#include "schema/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace kcoral::schema {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const std::string kBlobA(64, 'a');
const std::string kBlobB(64, 'b');
const std::string kBlobC(64, 'c');

ProgramBounds gpu_bounds() { return {.gpu_count_max = 4}; }

Program parse(std::string_view text, const ProgramBounds& bounds = gpu_bounds()) {
  auto program = parse_program(text, bounds);
  if (!program) ADD_FAILURE() << program.error().message << "\n" << text;
  return program.value_or(Program());
}

std::string refused(std::string_view text, const ProgramBounds& bounds = gpu_bounds()) {
  const auto program = parse_program(text, bounds);
  if (program) return "accepted";
  EXPECT_EQ(program.error().kind, ErrorKind::kParse);
  return program.error().message;
}

std::string with_options(std::string_view options) {
  return fmt::format(R"({{"instructions":[{{"op":"upload","id":"m","kind":"module","source":""}}],"options":{}}})",
                     options);
}

TEST(ParseProgramTest, ReadsEveryInstruction) {
  const std::string text = fmt::format(R"({{"instructions":[
    {{"op":"upload","id":"m","kind":"module","source":"def f(*a): return a\n"}},
    {{"op":"upload","id":"cu","kind":"module","source":"__global__ void k() {{}}","language":"cuda"}},
    {{"op":"upload","id":"t","kind":"tensor","blob":"{0}","dtype":"float16","shape":[2,3]}},
    {{"op":"upload","id":"b","kind":"bytes","blob":"{1}"}},
    {{"op":"upload","id":"p","kind":"file","blob":"{0}","path":"./data//in.bin"}},
    {{"op":"upload","id":"l","kind":"library","blob":"{2}"}},
    {{"op":"get_function","id":"f","module":{{"$ref":"m"}},"name":"f","cpu_only":true}},
    {{"op":"get_function","id":"k","module":{{"$ref":"cu"}},"name":"k"}},
    {{"op":"get_function","id":"g","module":{{"$ref":"l"}},"name":"add one","cpu_only":false}},
    {{"op":"run","id":"r","fn":{{"$ref":"f"}},"args":[{{"$ref":"t"}},1,[{{"$ref":"nobody"}}],{{"$ref":"t","x":1}}]}},
    {{"op":"run","id":"r2","fn":{{"$ref":"r"}}}},
    {{"op":"return","key":"out","value":{{"$ref":"r"}}}},
    {{"op":"return","key":"in","kind":"file","path":{{"$ref":"p"}}}},
    {{"op":"return","key":"dir","kind":"folder","path":"a/b"}}]}})",
                                       kBlobA, kBlobB, kBlobC);
  const Program program = parse(text);
  const auto& all = program.instructions;
  ASSERT_EQ(all.size(), 14U);

  std::vector<std::string_view> ops;
  std::vector<std::string> names;
  for (const Instruction& instruction : all) {
    ops.push_back(instruction.op());
    names.push_back(instruction.id + instruction.key);
    EXPECT_NE(instruction.id.empty(), instruction.key.empty());
  }
  EXPECT_THAT(ops, ElementsAre("upload", "upload", "upload", "upload", "upload", "upload", "get_function",
                               "get_function", "get_function", "run", "run", "return", "return", "return"));
  EXPECT_THAT(names, ElementsAre("m", "cu", "t", "b", "p", "l", "f", "k", "g", "r", "r2", "out", "in", "dir"));

  EXPECT_EQ(std::get<UploadModule>(all[0].operation).language, UploadModule::Language::kPython);
  EXPECT_EQ(std::get<UploadModule>(all[1].operation).language, UploadModule::Language::kCuda);
  const auto& tensor = std::get<UploadTensor>(all[2].operation);
  EXPECT_EQ(tensor.blob.hex(), kBlobA);
  EXPECT_EQ(tensor.dtype, find_dtype("float16"));
  EXPECT_THAT(tensor.shape, ElementsAre(2, 3));
  EXPECT_EQ(std::get<UploadBytes>(all[3].operation).blob.hex(), kBlobB);
  EXPECT_EQ(std::get<UploadFile>(all[4].operation).path, "data/in.bin");
  EXPECT_EQ(std::get<UploadLibrary>(all[5].operation).blob.hex(), kBlobC);
  EXPECT_EQ(std::get<GetFunction>(all[6].operation).module, 0U);
  EXPECT_TRUE(std::get<GetFunction>(all[6].operation).cpu_only);
  EXPECT_FALSE(std::get<GetFunction>(all[7].operation).cpu_only);
  EXPECT_EQ(std::get<GetFunction>(all[8].operation).module, 5U);
  EXPECT_EQ(std::get<schema::Run>(all[9].operation).fn, 6U);
  EXPECT_EQ(std::get<schema::Run>(all[10].operation).fn, 9U);
  EXPECT_EQ(std::get<ReturnValue>(all[11].operation).value, 9U);
  EXPECT_EQ(std::get<ReturnPath>(all[12].operation).kind, ReturnPath::Kind::kFile);
  EXPECT_EQ(std::get<ReturnPath>(all[13].operation).kind, ReturnPath::Kind::kFolder);

  std::vector<std::string> blobs;
  for (const Digest& blob : program.blobs) blobs.push_back(blob.hex());
  EXPECT_THAT(blobs, ElementsAre(kBlobA, kBlobB, kBlobC)) << "distinct, in the order of first use";
  ASSERT_EQ(program.tensor_lengths.size(), 1U);
  EXPECT_EQ(program.tensor_lengths[0].instruction, 2U);
  EXPECT_EQ(program.tensor_lengths[0].blob.hex(), kBlobA);
  EXPECT_EQ(program.tensor_lengths[0].bytes, 12U);
}

TEST(ParseProgramTest, FieldsComeInAnyOrderAndWithEscapes) {
  const Program program = parse(R"({ "options" : {} , "instructions" : [
      {"s\u006furce":"","\u006b\u0069nd":"modul\u0065","id":"\u00e9","op":"upload"},
      {"name":"f","module":{"\u0024ref":"é"},"op":"get_function","id":"f"},
      {"args":[],"fn":{"$ref":"f"},"id":"r","op":"run"},
      {"value":{"$ref":"r"},"key":"k","op":"return"}] } )");
  ASSERT_EQ(program.instructions.size(), 4U);
  EXPECT_EQ(program.instructions[0].id, "é");
}

TEST(ParseProgramTest, OptionsHaveDefaults) {
  for (const std::string& text : {with_options("{}"), with_options("{\"labels\":{}}")}) {
    const Options options = parse(text).options;
    EXPECT_EQ(options.timeout_seconds, 300);
    EXPECT_EQ(options.output_limit_bytes, 1048576U);
    EXPECT_EQ(options.gpu_count, 1);
    EXPECT_EQ(options.priority, 0);
    EXPECT_TRUE(options.labels.empty());
    EXPECT_EQ(options.max_attempts, std::nullopt);
  }
}

TEST(ParseProgramTest, OptionsAreRead) {
  const Options options = parse(with_options(R"({"timeout_seconds":0.25,"output_limit_bytes":0,"gpu_count":4,
      "priority":-100,"labels":{"suite":"gemm","é":""},"max_attempts":10})"))
                              .options;
  EXPECT_EQ(options.timeout_seconds, 0.25);
  EXPECT_EQ(options.output_limit_bytes, 0U);
  EXPECT_EQ(options.gpu_count, 4);
  EXPECT_EQ(options.priority, -100);
  EXPECT_THAT(options.labels, ElementsAre(Pair("suite", "gemm"), Pair("é", "")));
  EXPECT_EQ(options.max_attempts, 10);
}

TEST(ParseProgramTest, TimeoutAndOutputLimitAreClamped) {
  const ProgramBounds bounds{.timeout_seconds_max = 60, .output_limit_bytes_max = 1000, .gpu_count_max = 1};
  const Options defaults = parse(with_options("{}"), bounds).options;
  EXPECT_EQ(defaults.timeout_seconds, 60);
  EXPECT_EQ(defaults.output_limit_bytes, 1000U);
  for (const std::string_view timeout : {"61", "1e300", "100000000000000000000000000"}) {
    EXPECT_EQ(parse(with_options(fmt::format(R"({{"timeout_seconds":{}}})", timeout)), bounds).options.timeout_seconds,
              60);
  }
  EXPECT_EQ(parse(with_options(R"({"timeout_seconds":5e0})"), bounds).options.timeout_seconds, 5);
  for (const std::string_view limit :
       {"1001", "9223372036854775807", "9223372036854775808", "99999999999999999999999"}) {
    EXPECT_EQ(
        parse(with_options(fmt::format(R"({{"output_limit_bytes":{}}})", limit)), bounds).options.output_limit_bytes,
        1000U);
  }
  EXPECT_EQ(parse(with_options(R"({"output_limit_bytes":-0})"), bounds).options.output_limit_bytes, 0U);
}

TEST(ParseProgramTest, OptionsOutsideTheirRulesAreRefused) {
  const std::pair<std::string, std::string_view> cases[] = {
      {R"([])", "options: byte"},
      {R"(null)", "options: byte"},
      {R"({"timeout":1})", "options: unknown field \"timeout\"; accepted: timeout_seconds,"},
      {R"({"timeout_seconds":0})", "options: field \"timeout_seconds\": must be a finite number above 0"},
      {R"({"timeout_seconds":-1})", "finite number above 0"},
      {R"({"timeout_seconds":1e-400})", "finite number above 0"},
      {R"({"timeout_seconds":"5"})", "finite number above 0"},
      {R"({"timeout_seconds":true})", "finite number above 0"},
      {R"({"timeout_seconds":null})", "finite number above 0"},
      {R"({"timeout_seconds":1e400})", "options: field \"timeout_seconds\": byte"},
      {"{\"timeout_seconds\":1" + std::string(400, '0') + "}", "finite number above 0"},
      {R"({"output_limit_bytes":-1})", "options: field \"output_limit_bytes\": must be an integer of at least 0"},
      {R"({"output_limit_bytes":-99999999999999999999})", "integer of at least 0"},
      {R"({"output_limit_bytes":5.0})", "integer of at least 0"},
      {R"({"output_limit_bytes":5e0})", "integer of at least 0"},
      {R"({"output_limit_bytes":false})", "integer of at least 0"},
      {R"({"gpu_count":0})", "options: field \"gpu_count\": must be an integer from 1 to 8"},
      {R"({"gpu_count":9})", "integer from 1 to 8"},
      {R"({"gpu_count":5})", "asks for 5 GPUs; this server grants at most 4"},
      {R"({"gpu_count":1.0})", "must be an integer, not a number"},
      {R"({"gpu_count":true})", "must be an integer, not a boolean"},
      {R"({"gpu_count":99999999999999999999})", "integer from 1 to 8"},
      {R"({"priority":101})", "options: field \"priority\": must be an integer from -100 to 100"},
      {R"({"priority":-101})", "integer from -100 to 100"},
      {R"({"priority":1e1})", "must be an integer, not a number"},
      {R"({"max_attempts":0})", "options: field \"max_attempts\": must be an integer from 1 to 10"},
      {R"({"max_attempts":11})", "integer from 1 to 10"},
      {R"({"max_attempts":null})", "must be an integer, not null"},
      {R"({"labels":[]})", "options: field \"labels\": must be an object, not an array"},
      {R"({"labels":{"a":1}})", "options: field \"labels\": \"a\" must be a string"},
      {R"({"labels":{"a":"1","\u0061":"2"}})", "the key \"a\" is doubled"},
      {R"({"labels":{"a":")" + std::string(257, 'x') + "\"}}", "at most 256 bytes"},
      {"{\"labels\":{\"" + std::string(257, 'x') + "\":\"\"}}", "at most 256 bytes"},
      {R"({"priority":1,"priority":1})", "options: byte"},
  };
  for (const auto& [options, message] : cases) {
    EXPECT_THAT(refused(with_options(options)), HasSubstr(message)) << options;
  }
}

TEST(ParseProgramTest, ACpuServerGrantsOneGpuCountOnly) {
  const ProgramBounds cpu;
  EXPECT_EQ(parse(with_options(R"({"gpu_count":1})"), cpu).options.gpu_count, 1);
  EXPECT_THAT(refused(with_options(R"({"gpu_count":2})"), cpu), HasSubstr("this server grants at most 1"));
}

TEST(ParseProgramTest, LabelsAreBoundedInNumber) {
  const auto labels = [](size_t count) {
    std::string text = "{\"labels\":{";
    for (size_t i = 0; i < count; ++i) text += fmt::format("{}\"l{}\":\"\"", i ? "," : "", i);
    return text + "}}";
  };
  EXPECT_EQ(parse(with_options(labels(64))).options.labels.size(), 64U);
  EXPECT_THAT(refused(with_options(labels(65))), HasSubstr("more than 64 labels"));
}

TEST(ParseProgramTest, TheTopLevelHasExactlyItsFields) {
  EXPECT_THAT(refused("[]"), HasSubstr("program: byte 0: expected an object, found an array"));
  EXPECT_THAT(refused(""), HasSubstr("program: byte 0: expected a value, found the end of the text"));
  EXPECT_THAT(refused("{}"), HasSubstr("program: field \"instructions\" is missing"));
  EXPECT_THAT(refused(R"({"options":{}})"), HasSubstr("program: field \"instructions\" is missing"));
  EXPECT_THAT(refused(R"({"instructions":[]})"), HasSubstr("instructions: must not be empty"));
  EXPECT_THAT(refused(R"({"instructions":{}})"), HasSubstr("instructions: must be a non-empty array, not an object"));
  EXPECT_THAT(refused(R"({"version":1})"),
              HasSubstr("program: unknown field \"version\"; accepted: instructions, options"));
  EXPECT_THAT(refused(with_options("{}") + "x"), HasSubstr("program: byte"));
  EXPECT_THAT(refused("\xEF\xBB\xBF" + with_options("{}")), HasSubstr("a byte order mark is not accepted"));
  EXPECT_THAT(refused(R"({"options":{},"options":{}})"), HasSubstr("program: byte 23: the key \"options\" is doubled"));
}

TEST(ParseProgramTest, TheNumberOfInstructionsIsBounded) {
  const auto uploads = [](size_t count) {
    std::string text = R"({"instructions":[)";
    for (size_t i = 0; i < count; ++i) {
      text += fmt::format(R"({}{{"op":"upload","id":"{}","kind":"module","source":""}})", i ? "," : "", i);
    }
    return text + "]}";
  };
  EXPECT_EQ(parse(uploads(limits::kInstructionsMax)).instructions.size(), limits::kInstructionsMax);
  EXPECT_THAT(refused(uploads(limits::kInstructionsMax + 1)), HasSubstr("instructions: more than 65536 of them"));
}

TEST(ParseProgramTest, TheNumberOfBlobsIsBounded) {
  const auto uploads = [](size_t count) {
    std::string text = R"({"instructions":[)";
    for (size_t i = 0; i < count; ++i) {
      text += fmt::format(R"({}{{"op":"upload","id":"{}","kind":"bytes","blob":"{:064x}"}})", i ? "," : "", i, i);
    }
    // Naming one again does not count.
    return text + fmt::format(R"(,{{"op":"upload","id":"x","kind":"bytes","blob":"{:064x}"}}]}})", 0);
  };
  EXPECT_EQ(parse(uploads(limits::kBlobsMax)).blobs.size(), limits::kBlobsMax);
  EXPECT_THAT(refused(uploads(limits::kBlobsMax + 1)), HasSubstr("more than 8192 distinct blobs"));
}

TEST(ParseProgramTest, NestingOf128IsAcceptedAndCountsFromTheTop) {
  const auto program = [](int nested) {  // inside: the program, instructions, the instruction, args
    return R"({"instructions":[{"op":"upload","id":"m","kind":"module","source":""},)"
           R"({"op":"run","id":"r","fn":{"$ref":"m"},"args":[)" +
           std::string(static_cast<size_t>(nested), '[') + std::string(static_cast<size_t>(nested), ']') + "]}]}";
  };
  EXPECT_EQ(parse(program(124)).instructions.size(), 2U);
  EXPECT_THAT(refused(program(125)), HasSubstr("instructions[1] (run \"r\"): field \"args\": byte"));
  EXPECT_THAT(refused(program(125)), HasSubstr("nested more than 128 deep"));
}

TEST(ParseProgramTest, ArgumentsKeepWhatATreeWouldLose) {
  // Nothing of them is kept in the Program; being accepted is what counts here.
  parse(R"({"instructions":[{"op":"upload","id":"m","kind":"module","source":""},{"op":"run","id":"r","fn":{"$ref":"m"},
      "args":[123456789012345678901234567890123456789,-0,1e-400,1.0,{"b":1,"a":{"$ref":"x"}},{"$ref":7},{"$ref":{}},
              {},[],[{"$ref":"y"}],{"$ref":"m"},"s",null,true]}]})");
}

TEST(CheckBlobLengthTest, HoldsTensorsToTheirLength) {
  const Program program = parse(fmt::format(R"({{"instructions":[
      {{"op":"upload","id":"b","kind":"bytes","blob":"{1}"}},
      {{"op":"upload","id":"t","kind":"tensor","blob":"{0}","dtype":"int64","shape":[3]}},
      {{"op":"upload","id":"u","kind":"tensor","blob":"{0}","dtype":"uint8","shape":[4,6]}},
      {{"op":"upload","id":"e","kind":"tensor","blob":"{2}","dtype":"uint8","shape":[4,0]}}]}})",
                                            kBlobA, kBlobB, kBlobC));
  EXPECT_TRUE(check_blob_length(program, *Digest::parse(kBlobA), 24));
  EXPECT_TRUE(check_blob_length(program, *Digest::parse(kBlobB), 12345)) << "bytes have any length";
  EXPECT_TRUE(check_blob_length(program, *Digest::parse(kBlobC), 0));
  EXPECT_FALSE(check_blob_length(program, *Digest::parse(kBlobC), 1));
  const auto status = check_blob_length(program, *Digest::parse(kBlobA), 23);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kParse);
  EXPECT_EQ(status.error().message,
            "instructions[1] (upload \"t\"): field \"blob\": its content has 23 bytes; dtype and shape take 24");
}

TEST(CheckBlobLengthTest, TwoLengthsOfOneBlobAreRefusedAtOnce) {
  EXPECT_EQ(
      refused(fmt::format(R"({{"instructions":[
      {{"op":"upload","id":"t","kind":"tensor","blob":"{0}","dtype":"int64","shape":[3]}},
      {{"op":"upload","id":"u","kind":"tensor","blob":"{0}","dtype":"int32","shape":[3]}}]}})",
                          kBlobA)),
      "instructions[1] (upload \"u\"): field \"shape\": takes 12 bytes, but instructions[0] (upload \"t\") takes 24 of "
      "the same blob");
}

}  // namespace
}  // namespace kcoral::schema
