#include "executor/fake_executor.h"

#include <gtest/gtest.h>

namespace kcoral::executor {
namespace {

/// Notes every event by name and runs the next step of the test after each.
class Notes : public ExecutorEvents {
 public:
  void on_idle(const ExecutorInfo&) override { note("idle"); }
  void on_running(int) override { note("running"); }
  void on_records(std::vector<RunRecord>) override { note("records"); }
  void on_output(OutputStream, std::shared_ptr<const UniqueFd>) override { note("output"); }
  void on_outcome(RunReport report) override {
    note(report.ending == schema::Outcome::Ending::kCancelled ? "cancelled" : "outcome");
  }
  void on_lease_asked(const LeaseAsk&) override { note("asked"); }
  void on_lease_ended(uint64_t, bool) override { note("ended"); }
  void on_quarantined(std::string) override { note("quarantined"); }
  void on_lost(std::string, bool permanent) override { note(permanent ? "broken" : "lost"); }

  std::vector<std::string> names;
  std::function<void(const std::string&)> then;

 private:
  void note(const char* name) {
    names.emplace_back(name);
    if (then) then(name);
  }
};

using Names = std::vector<std::string>;

Names play(Fault fault, const std::function<void(FakeExecutor&, const Uuid&)>& when_running = {}) {
  auto loop = EventLoop::create();
  Notes notes;
  FakeExecutor executor(**loop, "fake", [](const Assignment&) {
    RunReport report;
    report.ending = schema::Outcome::Ending::kCompleted;
    return report;
  });
  executor.play(fault);
  Assignment assignment;
  assignment.request_id = Uuid::random();
  int idles = 0;
  notes.then = [&](const std::string& name) {
    if (name == "idle" && ++idles == 1) executor.run(assignment);
    if (name == "running" && when_running) when_running(executor, assignment.request_id);
    if ((name == "idle" && idles == 2) || name == "broken") (*loop)->stop();
  };
  executor.start(notes);
  (*loop)->run_after(std::chrono::milliseconds(100), [&] { (*loop)->stop(); });
  (*loop)->run();
  return notes.names;
}

TEST(FakeExecutor, AsksForLeasesAndEndsThem) {
  EXPECT_EQ(play(Fault::kHang,
                 [](FakeExecutor& executor, const Uuid&) {
                   executor.ask_lease({.id = 7, .devices = {0}});
                   executor.end_lease(7);
                 }),
            (Names{"idle", "running", "asked", "ended"}));
}

TEST(FakeExecutor, ShowsWhatItsProgramPrints) {
  EXPECT_EQ(play(Fault::kHang,
                 [](FakeExecutor& executor, const Uuid&) {
                   executor.show_output(OutputStream::kStdout, std::make_shared<const UniqueFd>());
                   executor.finish();
                 }),
            (Names{"idle", "running", "output", "outcome", "idle"}));
}

TEST(FakeExecutor, PlaysItsFaults) {
  const auto cancel = [](FakeExecutor& executor, const Uuid& id) { executor.cancel(id); };
  EXPECT_EQ(play(Fault::kNone), (Names{"idle", "running", "outcome", "idle"}));
  EXPECT_EQ(play(Fault::kHang), (Names{"idle", "running"}));
  EXPECT_EQ(play(Fault::kHang, cancel), (Names{"idle", "running", "cancelled", "idle"}));
  EXPECT_EQ(play(Fault::kHangIgnoringCancel, cancel), (Names{"idle", "running"}));
  EXPECT_EQ(play(Fault::kOutcomeAfterCancel, cancel), (Names{"idle", "running", "outcome", "idle"}));
  EXPECT_EQ(play(Fault::kDieBeforeRunning), (Names{"idle", "lost", "idle"}));
  EXPECT_EQ(play(Fault::kDieWhileRunning), (Names{"idle", "running", "lost", "idle"}));
  EXPECT_EQ(play(Fault::kBreakForGood), (Names{"idle", "running", "broken"}));
  EXPECT_EQ(play(Fault::kAnswerTwice), (Names{"idle", "running", "outcome", "outcome", "idle"}));
  EXPECT_EQ(play(Fault::kSlowAftermath), (Names{"idle", "running", "outcome"}));
  EXPECT_EQ(play(Fault::kQuarantine), (Names{"idle", "running", "outcome", "quarantined"}));
  EXPECT_EQ(play(Fault::kLateRecords), (Names{"idle", "running", "outcome", "records", "idle"}));
  EXPECT_EQ(play(Fault::kHang, [](FakeExecutor& executor, const Uuid&) { executor.die("x"); }),
            (Names{"idle", "running", "lost", "idle"}));
  EXPECT_EQ(play(Fault::kHang, [](FakeExecutor& executor, const Uuid&) { executor.finish(); }),
            (Names{"idle", "running", "outcome", "idle"}));
}

}  // namespace
}  // namespace kcoral::executor
