#include "scheduler/leases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <utility>

namespace kcoral::scheduler {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// A device is clear, or stuck, when the test says so.
class FakeClearance : public devices::Clearance {
 public:
  struct Asked {
    int device;
    std::vector<pid_t> executors;
    Handlers handlers;
  };
  void when_clear(int device, std::vector<pid_t> executors, Handlers handlers) override {
    asked.push_back({device, std::move(executors), std::move(handlers)});
  }
  std::deque<Asked> asked;
};

class LeasesTest : public testing::Test {
 protected:
  LeaseId ask(const std::string& who, std::vector<int> devices, size_t count = 1) {
    return leases_->ask({who, Uuid::random()}, {0, std::move(devices), count},
                        [this, who](const std::vector<int>& got) {
                          std::string text = who;
                          for (const int device : got) text += " " + std::to_string(device);
                          granted_.push_back(text);
                        });
  }
  /// Runs what was posted to the loop; once in a test.
  void run_loop() {
    loop_->post([this] { loop_->stop(); });
    loop_->run();
  }

  std::unique_ptr<EventLoop> loop_ = std::move(*EventLoop::create());
  FakeClearance clearance_;
  std::vector<std::string> granted_;
  std::vector<std::set<int>> quarantined_;  // as it was told, each time
  std::unique_ptr<Leases> leases_ =
      std::make_unique<Leases>(std::vector<int>{0, 1}, clearance_, *loop_,
                               Leases::Owner{[] {
                                               return std::vector<pid_t>{11, 12};
                                             },
                                             [this](std::set<int> devices) { quarantined_.push_back(devices); }});
};

TEST_F(LeasesTest, PassesOnAtOnceWhereTheProcessLivesOn) {
  const LeaseId first = ask("first", {0});
  ask("second", {0});
  EXPECT_THAT(granted_, ElementsAre("first 0"));
  EXPECT_EQ(leases_->view()[0].holder->executor, "first");
  EXPECT_EQ(leases_->view()[0].table.waiters, 1u);
  leases_->end(first, /*processes_ended=*/false);
  EXPECT_THAT(granted_, ElementsAre("first 0", "second 0"));
  EXPECT_THAT(clearance_.asked, IsEmpty());
}

TEST_F(LeasesTest, PassesOnOnceTheDeviceIsClearOfEndedProcesses) {
  const LeaseId first = ask("first", {}, 2);
  ask("second", {1});
  leases_->end(first, /*processes_ended=*/true);
  EXPECT_THAT(granted_, ElementsAre("first 0 1"));
  ASSERT_EQ(clearance_.asked.size(), 2u);
  EXPECT_EQ(clearance_.asked[1].device, 1);
  EXPECT_THAT(clearance_.asked[1].executors, ElementsAre(11, 12));
  clearance_.asked[1].handlers.cleared();
  EXPECT_THAT(granted_, ElementsAre("first 0 1")) << "only on the loop";
  run_loop();
  EXPECT_THAT(granted_, ElementsAre("first 0 1", "second 1"));
}

TEST_F(LeasesTest, DeviceThatStaysOccupiedIsQuarantinedAndComesBack) {
  const LeaseId first = ask("first", {0});
  ask("second", {0});
  leases_->end(first, /*processes_ended=*/true);
  clearance_.asked[0].handlers.stuck("process 77 still uses it");
  loop_->post([this] {
    EXPECT_EQ(leases_->view()[0].trouble, "process 77 still uses it");
    EXPECT_TRUE(leases_->view()[0].table.is_quarantined);
    EXPECT_EQ(granted_.size(), 1u);
    EXPECT_THAT(quarantined_, ElementsAre(std::set{0}));
  });
  clearance_.asked[0].handlers.cleared();
  run_loop();
  EXPECT_EQ(leases_->view()[0].trouble, "");
  EXPECT_THAT(quarantined_, ElementsAre(std::set{0}, std::set<int>()));
  EXPECT_THAT(granted_, ElementsAre("first 0", "second 0"));
}

TEST_F(LeasesTest, DevicesOfAHolderThatCannotBeEndedAreQuarantinedUntilItIsGone) {
  const LeaseId first = ask("first", {0});
  ask("second", {0});
  leases_->quarantine(first, "processes of request 4 could not be ended");
  EXPECT_THAT(quarantined_, ElementsAre(std::set{0}));
  EXPECT_EQ(leases_->view()[0].trouble, "processes of request 4 could not be ended");
  EXPECT_EQ(leases_->view()[0].holder->executor, "first") << "that is who has it";
  leases_->end(first, /*processes_ended=*/true);
  EXPECT_EQ(granted_.size(), 1u);
  clearance_.asked[0].handlers.cleared();
  run_loop();
  EXPECT_THAT(quarantined_, ElementsAre(std::set{0}, std::set<int>()));
  EXPECT_THAT(granted_, ElementsAre("first 0", "second 0"));
}

TEST_F(LeasesTest, HolderIsKnownByItsRequest) {
  const Uuid request = Uuid::random();
  const LeaseId lease = leases_->ask({"executor-3", request}, {0, {1}, 1}, [](const std::vector<int>&) {});
  EXPECT_EQ(leases_->view()[1].holder->request_id, request);
  EXPECT_EQ(leases_->view()[0].holder.has_value(), false);
  leases_->end(lease, false);
  EXPECT_EQ(leases_->view()[1].holder.has_value(), false);
}

TEST_F(LeasesTest, WhoIsGrantedMayEndItsLeaseAtOnce) {
  const LeaseId holder = ask("holder", {0});
  LeaseId brief = 0;
  brief = leases_->ask({"brief", std::nullopt}, {0, {0}, 1}, [&](const std::vector<int>&) {
    granted_.push_back("brief");
    leases_->end(brief, false);
  });
  ask("last", {0});
  leases_->end(holder, false);
  EXPECT_THAT(granted_, ElementsAre("holder 0", "brief", "last 0"));
}

}  // namespace
}  // namespace kcoral::scheduler
