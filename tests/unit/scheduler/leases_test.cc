#include "scheduler/leases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <utility>

#include "schema/limits.h"
#include "tests/unit/scheduler/fake_clearance.h"

namespace kcoral::scheduler {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

class LeasesTest : public testing::Test {
 protected:
  LeaseId ask(const std::string& who, std::vector<int> devices, size_t count = 1) {
    return leases_->ask({who, Uuid::random()}, {0, std::move(devices), count},
                        {.granted =
                             [this, who](const std::vector<int>& got) {
                               std::string text = who;
                               for (const int device : got) text += " " + std::to_string(device);
                               granted_.push_back(text);
                             },
                         .denied = [this, who](const std::string& why) { denied_.push_back(who + ": " + why); }});
  }
  /// Runs what was posted to the loop; once in a test.
  void run_loop() {
    loop_->post([this] { loop_->stop(); });
    loop_->run();
  }

  /// The steps one after another, what each brings about done before the next; once in a test.
  void run_steps(std::vector<std::function<void()>> steps) {
    steps.push_back([this] { loop_->stop(); });
    steps_ = std::move(steps);
    post_step(0);
    loop_->run();
  }
  void post_step(size_t index) {
    loop_->post([this, index] {
      steps_[index]();
      if (index + 1 < steps_.size()) post_step(index + 1);
    });
  }
  std::function<void()> pass(std::chrono::seconds time) {
    return [this, time] { clock_.advance(time); };
  }
  /// The holder's processes end, and one of them stays on its devices.
  std::function<void()> leave_stuck(LeaseId holder) {
    return [this, holder] {
      const size_t first = clearance_.asked.size();
      leases_->end(holder, /*processes_ended=*/true);
      for (size_t i = first; i < clearance_.asked.size(); ++i) clearance_.asked[i].handlers.stuck("process 77 stays");
    };
  }
  std::function<void()> come_back(size_t asked) {
    return [this, asked] { clearance_.asked[asked].handlers.cleared(); };
  }

  FakeClock clock_;
  std::unique_ptr<EventLoop> loop_ = std::move(*EventLoop::create(clock_));
  FakeClearance clearance_;
  std::vector<std::function<void()>> steps_;
  std::vector<std::string> granted_, denied_;
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

TEST_F(LeasesTest, CountsHowLongProgramsWaitForLeasesAndHoldThem) {
  const auto count = [](const HistogramView& view) {
    return std::accumulate(view.counts.begin(), view.counts.end(), uint64_t{0});
  };
  const LeaseId first = ask("first", {0});
  ask("second", {0});
  const LeaseId context =
      leases_->ask({"executor", std::nullopt}, {0, {1}, 1}, {.granted = [](const std::vector<int>&) {}});
  clock_.advance(std::chrono::seconds(3));
  leases_->end(context, /*processes_ended=*/false);
  leases_->end(first, /*processes_ended=*/false);
  const Leases::Figures figures = leases_->figures();
  EXPECT_EQ(count(figures.waited), 2u) << "a context's lease is no program's";
  EXPECT_EQ(figures.waited.sum_seconds, 3);
  EXPECT_EQ(count(figures.held), 1u) << "the second one's has not ended";
  EXPECT_EQ(figures.held.sum_seconds, 3);
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
  const LeaseId lease = leases_->ask({"executor-3", request}, {0, {1}, 1}, {.granted = [](const std::vector<int>&) {}});
  EXPECT_EQ(leases_->view()[1].holder->request_id, request);
  EXPECT_EQ(leases_->view()[0].holder.has_value(), false);
  leases_->end(lease, false);
  EXPECT_EQ(leases_->view()[1].holder.has_value(), false);
}

TEST_F(LeasesTest, WhoIsGrantedMayEndItsLeaseAtOnce) {
  const LeaseId holder = ask("holder", {0});
  LeaseId brief = 0;
  brief = leases_->ask({"brief", std::nullopt}, {0, {0}, 1}, {.granted = [&](const std::vector<int>&) {
                         granted_.push_back("brief");
                         leases_->end(brief, false);
                       }});
  ask("last", {0});
  leases_->end(holder, false);
  EXPECT_THAT(granted_, ElementsAre("holder 0", "brief", "last 0"));
}

// --- who waits for a device that is quarantined ---

constexpr std::chrono::seconds kGrace = limits::kQuarantineGrace;

TEST_F(LeasesTest, WhoeverWaitsForAQuarantinedDeviceIsToldWhyOnceTheGraceIsOver) {
  const LeaseId holder = ask("holder", {0}), second = ask("second", {0});
  const auto nobody_is_told = [this] { EXPECT_THAT(denied_, IsEmpty()); };
  const auto second_is_told = [this] {
    EXPECT_THAT(
        denied_,
        ElementsAre("second: GPU 0 is quarantined since 2023-11-14T22:13:20Z: process 77 stays; it may come back "
                    "by itself (GET /gpus shows it): send the program again"));
    EXPECT_EQ(leases_->view()[0].table.waiters, 0u);
  };
  run_steps({leave_stuck(holder), pass(kGrace - std::chrono::seconds(1)), nobody_is_told, pass(std::chrono::seconds(1)),
             second_is_told, pass(kGrace), come_back(0)});
  EXPECT_EQ(denied_.size(), 1u) << "once";
  EXPECT_THAT(granted_, ElementsAre("holder 0")) << "what was denied is not granted";
  leases_->end(second, /*processes_ended=*/true);
  EXPECT_EQ(clearance_.asked.size(), 1u) << "it had no device";
  ask("third", {0});
  EXPECT_THAT(granted_, ElementsAre("holder 0", "third 0"));
}

TEST_F(LeasesTest, WhoeverAsksForADeviceThatIsOutForLongIsToldAtOnce) {
  const LeaseId holder = ask("holder", {0});
  run_steps({leave_stuck(holder), pass(kGrace - std::chrono::seconds(1)), [this] { ask("early", {0}); },
             [this] { EXPECT_THAT(denied_, IsEmpty()); }, pass(std::chrono::seconds(1)),
             [this] { EXPECT_THAT(denied_, ElementsAre(StartsWith("early: GPU 0"))); },
             [this] {
               ask("late", {0});
               EXPECT_EQ(denied_.size(), 2u) << "from within";
               ask("elsewhere", {1});
             }});
  EXPECT_THAT(denied_, ElementsAre(StartsWith("early: GPU 0"), StartsWith("late: GPU 0")));
  EXPECT_THAT(granted_, ElementsAre("holder 0", "elsewhere 1"));
}

TEST_F(LeasesTest, ADeviceThatComesBackInTimeIsGrantedAndNobodyIsTold) {
  const LeaseId holder = ask("holder", {0});
  ask("second", {0});
  ask("third", {0});
  run_steps({leave_stuck(holder), pass(kGrace - std::chrono::seconds(1)), come_back(0), pass(kGrace)});
  EXPECT_THAT(granted_, ElementsAre("holder 0", "second 0"));
  EXPECT_THAT(denied_, IsEmpty()) << "the third waits for the second";
}

TEST_F(LeasesTest, TheGraceBeginsAnewWithTheNextQuarantine) {
  const LeaseId holder = ask("holder", {0}), second = ask("second", {0});
  ask("third", {0});
  run_steps({leave_stuck(holder), pass(kGrace - std::chrono::seconds(1)), come_back(0), [] {}, leave_stuck(second),
             pass(kGrace - std::chrono::seconds(1)), [this] { EXPECT_THAT(denied_, IsEmpty()); },
             pass(std::chrono::seconds(1)), [this] { EXPECT_EQ(denied_.size(), 1u); }});
}

TEST_F(LeasesTest, WhomAnotherDeviceCanServeWaitsOn) {
  const LeaseId holder = ask("holder", {0}), other = ask("other", {1});
  ask("any", {});
  run_steps({leave_stuck(holder), pass(kGrace * 2)});
  EXPECT_THAT(denied_, IsEmpty());
  leases_->end(other, /*processes_ended=*/false);
  EXPECT_THAT(granted_, ElementsAre("holder 0", "other 1", "any 1"));
}

TEST_F(LeasesTest, WhoeverNeedsSeveralIsToldOfAllThatAreMissing) {
  const LeaseId holder = ask("holder", {}, 2);
  ask("both", {0, 1});
  run_steps({leave_stuck(holder), pass(kGrace), [] {}});
  ASSERT_EQ(denied_.size(), 1u);
  EXPECT_EQ(denied_[0],
            "both: GPU 0 is quarantined since 2023-11-14T22:13:20Z: process 77 stays; "
            "GPU 1 is quarantined since 2023-11-14T22:13:20Z: process 77 stays; "
            "they may come back by themselves (GET /gpus shows it): send the program again");
}

TEST_F(LeasesTest, AContextWaitsForItsDeviceHoweverLong) {
  const LeaseId holder = ask("holder", {0});
  bool is_granted = false;
  const LeaseId context = leases_->ask({"executor-0", std::nullopt}, {-1, {0}, 1},
                                       {.granted = [&](const std::vector<int>&) { is_granted = true; }});
  run_steps({leave_stuck(holder), pass(kGrace * 10), [&] { EXPECT_FALSE(is_granted); }, come_back(0), [] {}});
  EXPECT_TRUE(is_granted);
  leases_->end(context, /*processes_ended=*/false);
}

TEST_F(LeasesTest, OneQuarantineAfterAnotherIsOneForWhoeverWaits) {
  const LeaseId holder = ask("holder", {0});
  ask("second", {0});
  run_steps({[&] { leases_->quarantine(holder, "processes of a request could not be ended"); },
             pass(kGrace - std::chrono::seconds(1)), leave_stuck(holder), pass(std::chrono::seconds(1)), [] {}});
  EXPECT_THAT(denied_, ElementsAre(StartsWith("second: GPU 0 is quarantined since 2023-11-14T22:13:20Z: process 77")))
      << "since the first, for the last reason";
}

TEST_F(LeasesTest, WhoeverIsToldMayEndOthersAtOnce) {
  const LeaseId holder = ask("holder", {0});
  LeaseId last = 0;
  std::ignore = leases_->ask({"first", Uuid::random()}, {0, {0}, 1},
                             {.granted = [](const std::vector<int>&) {},
                              .denied =
                                  [&](const std::string&) {
                                    denied_.push_back("first");
                                    leases_->end(last, /*processes_ended=*/true);
                                    leases_->end(holder, /*processes_ended=*/false);
                                  }});
  last = ask("last", {0});
  ask("next", {0});
  run_steps({[&] { leases_->quarantine(holder, "it could not be ended"); }, pass(kGrace), [] {}});
  EXPECT_THAT(denied_, ElementsAre("first"));
  EXPECT_THAT(granted_, ElementsAre("holder 0", "next 0")) << "the device is back";
}

TEST_F(LeasesTest, NobodyIsToldOnceItsLeasesAreGone) {
  const LeaseId holder = ask("holder", {0});
  ask("second", {0});
  run_steps({leave_stuck(holder), [] {}, [this] { leases_.reset(); }, pass(kGrace), [] {}});
  EXPECT_THAT(denied_, IsEmpty());
}

}  // namespace
}  // namespace kcoral::scheduler
