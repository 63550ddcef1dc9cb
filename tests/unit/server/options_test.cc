#include "server/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace kcoral::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

class OptionsTest : public testing::Test {
 protected:
  OptionsTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kcoral-options-XXXXXX").string();
    KCORAL_CHECK(::mkdtemp(pattern.data()) != nullptr);
    directory_ = pattern;
  }
  ~OptionsTest() override {
    std::filesystem::remove_all(directory_);
    for (const char* name :
         {"KCORAL_SERVER_HOST", "KCORAL_SERVER_PORT", "KCORAL_SERVER_DEVICE", "KCORAL_SERVER_GPUS"}) {
      ::unsetenv(name);
    }
  }

  static CommandLine parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), {"kcoral", "server"});
    return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
  }
  /// The path of a file that holds this.
  const char* config(const std::string& text) {
    path_ = directory_ + "/kcoral.toml";
    std::ofstream(path_) << text;
    return path_.c_str();
  }

  std::string directory_;
  std::string path_;
};

TEST_F(OptionsTest, AFlagWinsOverItsVariableThatOverTheFileAndTheFileOverTheDefault) {
  const char* file = config("port = 3\nhost = 'file'\nnum-workers = 3\npreload = ['numpy', 'json']\n");
  ::setenv("KCORAL_SERVER_PORT", "2", 1);
  ::setenv("KCORAL_SERVER_HOST", "variable", 1);
  const CommandLine command = parse({"--config", file, "--port", "1"});
  ASSERT_TRUE(command.run_server) << command.text;
  EXPECT_EQ(command.server.port, 1);
  EXPECT_EQ(command.server.host, "variable");
  EXPECT_EQ(command.server.slots, 3u);
  EXPECT_THAT(command.server.preload, Optional(ElementsAre("numpy", "json")));
  EXPECT_EQ(command.server.log_level, "info");
}

TEST_F(OptionsTest, WhatIsPrintedSaysWhereItCameFromAndIsAFileOfThat) {
  const char* file = config("num-workers = 3\nenv = [\"A=1\", 'B=x y']\nmax-timeout-seconds = 7.5\n");
  ::setenv("KCORAL_SERVER_PORT", "2", 1);
  const CommandLine printed = parse({"--config", file, "--host=0.0.0.0", "--preload", "numpy,json", "--print-config"});
  EXPECT_FALSE(printed.run_server);
  EXPECT_EQ(printed.exit_code, 0);
  for (const std::string& line :
       {std::string("host = \"0.0.0.0\"  # flag\n"), std::string("port = 2  # KCORAL_SERVER_PORT\n"),
        "num-workers = 3  # " + path_ + "\n", std::string("# log-level = \"info\"  # default\n"),
        std::string("preload = [\"numpy\", \"json\"]  # flag\n"), std::string("# python is not set\n")}) {
    EXPECT_THAT(printed.text, HasSubstr(line));
  }
  EXPECT_THAT(printed.text, testing::Not(HasSubstr("print-config =")));

  ::unsetenv("KCORAL_SERVER_PORT");
  const CommandLine again = parse({"--config", config(printed.text)});
  ASSERT_TRUE(again.run_server) << again.text;
  EXPECT_EQ(again.server.host, "0.0.0.0");
  EXPECT_EQ(again.server.port, 2);
  EXPECT_EQ(again.server.slots, 3u);
  EXPECT_THAT(again.server.preload, Optional(ElementsAre("numpy", "json")));
  EXPECT_EQ(again.server.environment, (std::map<std::string, std::string>{{"A", "1"}, {"B", "x y"}}));
  EXPECT_EQ(again.server.timeout_seconds_max, 7.5);
  EXPECT_EQ(again.server.data_dir, printed.server.data_dir);
}

TEST_F(OptionsTest, NumbersAreWholeAndInTheirRange) {
  for (const char* flag : {"--max-memory-bytes", "--max-requests-per-worker", "--max-output-bytes",
                           "--cache-capacity-bytes", "--max-request-bytes", "--num-workers", "--port"}) {
    for (const char* text : {"-1", "4G", "1.5", "", " 7", "99999999999999999999999", "0x10"}) {
      const CommandLine command = parse({flag, text});
      EXPECT_EQ(command.exit_code, 2) << flag << " " << text;
      EXPECT_THAT(command.text, HasSubstr(flag)) << command.text;
    }
  }
  EXPECT_THAT(parse({"--max-memory-bytes", "1000"}).text, HasSubstr("a whole number from 67108864 to"));
  EXPECT_EQ(parse({"--max-memory-bytes", "0"}).server.memory_bytes_max, 0u);
  EXPECT_EQ(parse({"--max-memory-bytes", "67108864"}).server.memory_bytes_max, 64 * limits::kMiB);
  EXPECT_GT(parse({}).server.memory_bytes_max, 0u);
}

TEST_F(OptionsTest, AFileThatIsWrongIsRefusedByNameWithWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"\nnum-worker = 3\n", "line 2: num-worker: there is no such setting"},
      {"num-workers = 0\n", "line 1: num-workers: "},
      {"num-workers = 1.5\n", "num-workers"},
      {"num-workers = [1, 2]\n", "num-workers"},
      {"port = 'x'\n", "port"},
      {"port = true\n", "a setting is a string, a number, or a list"},
      {"port = 1\nport = 2\n", "line 2"},
      {"port 5\n", "line 1"},
      {"[server]\nport = 1\n", "sections are not known"},
      {"config = 'other'\n", "there is no such setting"},
      {"device = 'tpu'\n", "tpu"},
  };
  for (const auto& [text, complaint] : cases) {
    const CommandLine command = parse({"--config", config(text)});
    EXPECT_FALSE(command.run_server) << text;
    EXPECT_EQ(command.exit_code, 2) << text;
    EXPECT_THAT(command.text, HasSubstr(path_)) << text;
    EXPECT_THAT(command.text, HasSubstr(complaint)) << text;
  }
  for (const char* path : {"/nonexistent/kcoral.toml", "/"}) {
    const CommandLine unreadable = parse({"--config", path});
    EXPECT_EQ(unreadable.exit_code, 2);
    EXPECT_THAT(unreadable.text, HasSubstr(std::string("cannot read ") + path));
  }
}

TEST_F(OptionsTest, AnyTextSurvivesBeingPrintedAndReadAgain) {
  const std::string values[] = {"#fff",    "it's", "say \"x\"", "back\\slash", "a, b",
                                " space ", "[x",   "1e3",       "tab\there"};
  for (const std::string& value : values) {
    const std::string assignment = "NAME=" + value;
    const CommandLine printed = parse({"--env", assignment.c_str(), "--data-dir", value.c_str(), "--print-config"});
    const CommandLine again = parse({"--config", config(printed.text)});
    ASSERT_TRUE(again.run_server) << printed.text << again.text;
    EXPECT_EQ(again.server.environment.at("NAME"), value) << printed.text;
    EXPECT_EQ(again.server.data_dir, value) << printed.text;
  }
}

TEST_F(OptionsTest, PreloadingNothingIsNotTheDefault) {
  EXPECT_THAT(parse({}).server.preload, testing::Eq(std::nullopt));
  EXPECT_THAT(parse({"--preload", ""}).server.preload, Optional(testing::IsEmpty()));
  const char* file = config("preload = []\n");
  EXPECT_THAT(parse({"--config", file}).server.preload, Optional(testing::IsEmpty()));
  EXPECT_THAT(parse({"--config", file, "--device", "gpu"}).server.preload, Optional(testing::IsEmpty()));
  EXPECT_THAT(parse({"--config", file, "--preload", "numpy"}).server.preload, Optional(ElementsAre("numpy")));

  const CommandLine printed = parse({"--config", file, "--print-config"});
  EXPECT_THAT(printed.text, HasSubstr(std::string("\npreload = []  # ") + file));
  EXPECT_THAT(parse({"--config", config(printed.text)}).server.preload, Optional(testing::IsEmpty()));
  EXPECT_THAT(parse({"--preload", "", "--print-config"}).text, HasSubstr("\npreload = []  # flag\n"));
}

TEST_F(OptionsTest, ListsMayBeEmptyAndSpanLines) {
  const char* empty = config("gpus = []\nenv = []\nexpose = []\nallowed-host = []\n");
  const CommandLine command = parse({"--config", empty});
  ASSERT_TRUE(command.run_server) << command.text;
  EXPECT_TRUE(command.server.gpus.empty());
  EXPECT_TRUE(command.server.environment.empty());
  EXPECT_TRUE(command.server.read_only_paths.empty());
  EXPECT_TRUE(command.server.allowed_hosts.empty());
  const CommandLine printed = parse({"--config", empty, "--print-config"});
  EXPECT_THAT(printed.text, HasSubstr("\nexpose = []  # "));
  EXPECT_TRUE(parse({"--config", config(printed.text)}).run_server);
  EXPECT_EQ(parse({"--config", config("host = []\n")}).exit_code, 2);
  EXPECT_THAT(parse({"--config", config("preload = [\n  'numpy',  # first\n  'json',\n]\n")}).server.preload,
              Optional(ElementsAre("numpy", "json")));
}

TEST_F(OptionsTest, GpusAreTakenInTheirOrderFromWhereverTheyAreNamed) {
  EXPECT_THAT(parse({}).server.gpus, testing::IsEmpty());
  EXPECT_EQ(parse({}).server.device, ServerOptions::DeviceMode::kAuto);
  EXPECT_THAT(parse({"--gpus", "3,0,11"}).server.gpus, ElementsAre(0, 3, 11));
  EXPECT_THAT(parse({"--gpus", "3", "--gpus", "1"}).server.gpus, ElementsAre(1, 3));
  EXPECT_THAT(parse({"--config", config("gpus = [2, 1]\n")}).server.gpus, ElementsAre(1, 2));
  ::setenv("KCORAL_SERVER_GPUS", "5,4", 1);
  ::setenv("KCORAL_SERVER_DEVICE", "gpu", 1);
  EXPECT_THAT(parse({}).server.gpus, ElementsAre(4, 5));
  EXPECT_EQ(parse({}).server.device, ServerOptions::DeviceMode::kGpu);
  EXPECT_THAT(parse({"--gpus", "7"}).server.gpus, ElementsAre(7));
  EXPECT_EQ(parse({"--device", "auto"}).server.device, ServerOptions::DeviceMode::kAuto);
  ::setenv("KCORAL_SERVER_GPUS", "", 1);
  EXPECT_THAT(parse({}).server.gpus, testing::IsEmpty());
}

TEST_F(OptionsTest, GpusThatMakeNoSenseAreRefused) {
  for (const char* text : {"-1", "x", "0-3", "1.5", "0;1", "4294967296", ""}) {
    const CommandLine command = parse({"--gpus", text});
    EXPECT_EQ(command.exit_code, 2) << text;
    EXPECT_THAT(command.text, HasSubstr("--gpus")) << text;
  }
  EXPECT_THAT(parse({"--gpus", "1,0,1"}).text, HasSubstr("a GPU is named twice"));
  EXPECT_THAT(parse({"--gpus", "0", "--device", "cpu"}).text, HasSubstr("--gpus"));
  EXPECT_EQ(parse({"--gpus", "0", "--device", "cpu"}).exit_code, 2);
  EXPECT_EQ(parse({"--device", "tpu"}).exit_code, 2);
}

TEST_F(OptionsTest, WorkersOfAGpuAndTheWaitForItHaveBounds) {
  EXPECT_EQ(parse({}).server.slots_per_gpu, 8u);
  EXPECT_EQ(parse({"--workers-per-gpu", "64"}).server.slots_per_gpu, 64u);
  EXPECT_EQ(parse({}).server.lease_wait, std::chrono::seconds(1800));
  EXPECT_EQ(parse({"--lease-wait-timeout-seconds", "5"}).server.lease_wait, std::chrono::seconds(5));
  EXPECT_FALSE(parse({}).server.slots_given);
  EXPECT_TRUE(parse({"--num-workers", "1"}).server.slots_given);
  for (const char* flag : {"--workers-per-gpu", "--lease-wait-timeout-seconds"}) {
    for (const char* text : {"0", "-1", "65000000", "1.5", ""}) {
      EXPECT_EQ(parse({flag, text}).exit_code, 2) << flag << " " << text;
    }
  }
}

TEST_F(OptionsTest, ABackupNeedsAPlaceAndTakesTheServersDataDirectory) {
  const auto parsed = [](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), {"kcoral", "backup"});
    return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
  };
  const CommandLine command = parsed({"/backups/one"});
  ASSERT_TRUE(command.backup) << command.text;
  EXPECT_FALSE(command.run_server);
  EXPECT_EQ(command.backup->directory, "/backups/one");
  EXPECT_EQ(command.backup->data_dir, parse({}).server.data_dir) << "the same default";
  EXPECT_EQ(parsed({"--data-dir", "here", "there"}).backup->data_dir, "here");
  for (const auto& wrong : std::vector<std::vector<const char*>>{{}, {"one", "two"}, {"--port", "1", "one"}}) {
    EXPECT_FALSE(parsed(wrong).backup);
    EXPECT_EQ(parsed(wrong).exit_code, 2);
  }
  EXPECT_EQ(parsed({"--help"}).exit_code, 0);
  EXPECT_FALSE(parse({}).backup);
}

TEST_F(OptionsTest, WhatTheServerManagesCannotBeSet) {
  for (const char* name : {"KCORAL_DIR=x", "HOME=x", "CUDA_VISIBLE_DEVICES=x", "=x", "x"}) {
    EXPECT_EQ(parse({"--env", name}).exit_code, 2) << name;
  }
  EXPECT_EQ(parse({"--max-timeout-seconds", "nan"}).exit_code, 2);
}

}  // namespace
}  // namespace kcoral::server
