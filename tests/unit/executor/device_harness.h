// What the tests of executors with devices share: a slot with a scripted runtime (fake_zygote.py) whose executor's
// clock the test moves, and leases that the test grants.
#pragma once

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "schema/limits.h"
#include "tests/unit/executor/scripted_harness.h"

namespace kcoral::executor {

/// bubblewrap, its init, kcoral-init and the zygote; a runtime comes with a kcoral-init.
inline constexpr size_t kSlotProcesses = 4;

class DeviceTest : public testing::Test {
 protected:
  using Ending = schema::Outcome::Ending;

  DeviceTest() {
    executable_ = install_with_python(installation_.path(), {{"zygote.py", fake_zygote()}});
    std::filesystem::copy_file(KCORAL_TEST_SHIFTED_EXECUTOR, executable_,
                               std::filesystem::copy_options::overwrite_existing);
    const std::string clock = installation_.path() / "clock";
    KCORAL_CHECK(::mkfifo(clock.c_str(), 0600) == 0);
    clock_.reset(::open(clock.c_str(), O_RDWR | O_CLOEXEC));
    KCORAL_CHECK(clock_);
    std::filesystem::permissions(signs_.path(), std::filesystem::perms(0755));
  }

  /// A slot with the device 3. `zygote_script`: see fake_zygote.py.
  std::unique_ptr<SlotHarness> make_slot(const std::string& zygote_script = "", size_t standby = 0,
                                         const SlotHarness::Adjust& adjust = {}) {
    return std::make_unique<SlotHarness>([&](ExecutorConfig& config) {
      config.executor_path = executable_;
      config.standby = standby;
      config.devices = {3};
      config.read_only_paths.push_back(signs_.path());
      if (!zygote_script.empty()) config.environment["KCORAL_FAKE_ZYGOTE"] = zygote_script;
      if (adjust) adjust(config);
    });
  }
  /// Moves the executor's clock. What it waits for must have begun before.
  void advance(std::chrono::milliseconds by) {
    const std::string line = std::to_string(by.count()) + "\n";
    KCORAL_CHECK(::write(clock_.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  }
  /// Moves it on and on until `is_true`: whatever is waited for, and begins only meanwhile, takes its time.
  bool advance_until(const std::function<bool()>& is_true) {
    return wait_until([&] {
      int unread = 0;
      if (::ioctl(clock_.get(), FIONREAD, &unread) == 0 && unread == 0) advance(limits::kKillWait);
      return is_true();
    });
  }
  /// A condition that scripts can ask for, and that the test brings about.
  std::string is_given(const std::string& sign) const {
    return "os.path.exists('" + (signs_.path() / sign).string() + "')";
  }
  void give(const std::string& sign) const { std::ofstream(signs_.path() / sign) << "now"; }

  static Assignment with_gpu(SlotHarness& slot, const std::string& script, int gpu_count = 1) {
    Assignment assignment = slot.make_assignment(scripted(script));
    assignment.gpu_count = gpu_count;
    return assignment;
  }

 private:
  TemporaryDirectory installation_;
  TemporaryDirectory signs_{"/var/tmp"};  // a slot has a /tmp of its own
  std::string executable_;
  UniqueFd clock_;
};

inline constexpr const char* kTakeLease = "started(0)\nsend('lease_request', index=0)\nreceive()\n";
/// For a script that has started the first instruction.
inline constexpr const char* kRest =
    "for i in (1, 2): started(i)\n"
    "started(3); returned(3, '{\"value\":{\"type\":\"null\"},\"parts\":[]}')\n";

}  // namespace kcoral::executor
