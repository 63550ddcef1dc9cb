#include "executor/supervisor/context_making.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "schema/limits.h"

namespace kcoral::executor {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ContextMakingTest : public testing::Test {
 protected:
  ContextMakingTest() {
    making_ = std::make_unique<ContextMaking>(
        *loop_, leases_, std::vector<int>{3},
        ContextMaking::Handlers{[this](const json& body) { told_.push_back(body.at("type")); },
                                [this] { heard_.push_back("made"); },
                                [this](const Error& error) {
                                  heard_.push_back(error.message);
                                  kind_ = error.kind;
                                }});
  }

  /// As it comes from a socket.
  static Frame frame(const json& body) {
    Frame received;
    received.body = *parse_frame(body.dump());
    return received;
  }
  bool says(const char* type, json more = json::object()) {
    more["type"] = type;
    return making_->take(frame(more));
  }
  void grant() {
    ASSERT_TRUE(leases_.take_grant(
        frame({{"type", "lease_granted"}, {"lease", asked_.at("lease")}, {"devices", std::vector<int>{3}}})));
  }
  /// Up to the moment when the runtime makes it.
  void begin() {
    ASSERT_TRUE(says("initialised"));
    grant();
  }
  void pass(std::chrono::seconds time) {
    clock_.advance(time);
    loop_->post([this] { loop_->stop(); });
    loop_->run();
  }

  FakeClock clock_;
  std::unique_ptr<EventLoop> loop_ = std::move(*EventLoop::create(clock_));
  json asked_;                           // the last lease
  int asked_count_ = 0;                  // how many leases
  std::vector<json> ended_;              // leases: whether their processes had
  std::vector<std::string> told_;        // to the runtime
  ErrorKind kind_ = ErrorKind::kEngine;  // of the last failure
  std::vector<std::string> heard_;       // from the handlers
  DeviceLeases leases_{clock_, [this](const json& body) {
                         if (body.at("type") == "lease_end") {
                           ended_.push_back(body.at("processes_ended"));
                         } else {
                           asked_ = body;
                           ++asked_count_;
                         }
                       }};
  std::unique_ptr<ContextMaking> making_;
};

TEST_F(ContextMakingTest, TheDriverIsStartedAtOnceAndTheContextUnderALeaseBehindEveryProgram) {
  EXPECT_THAT(told_, ElementsAre("initialise"));
  EXPECT_EQ(asked_count_, 0);
  EXPECT_TRUE(says("initialised"));
  EXPECT_EQ(asked_["purpose"], "context");
  EXPECT_EQ(asked_["devices"], json::array({3}));
  EXPECT_LT(asked_["priority"], -100) << "the lowest of a program";
  EXPECT_THAT(told_, ElementsAre("initialise"));
  EXPECT_FALSE(making_->has_context());
  grant();
  EXPECT_THAT(told_, ElementsAre("initialise", "make_context"));
  EXPECT_TRUE(making_->has_context()) << "it may exist from here on";
  EXPECT_FALSE(making_->is_made());
  EXPECT_TRUE(says("context_made"));
  EXPECT_TRUE(making_->is_made());
  EXPECT_THAT(heard_, ElementsAre("made"));
  EXPECT_THAT(ended_, ElementsAre(false)) << "the process lives on, and is idle";
}

TEST_F(ContextMakingTest, FramesAreTakenOnlyInTheirTurn) {
  EXPECT_FALSE(says("context_made"));
  EXPECT_FALSE(says("ready"));
  EXPECT_TRUE(says("initialised"));
  for (const char* type : {"initialised", "context_made", "context_failed"}) EXPECT_FALSE(says(type)) << type;
  grant();
  EXPECT_FALSE(says("initialised"));
  EXPECT_TRUE(says("context_made"));
  for (const char* type : {"initialised", "context_made", "context_failed"}) EXPECT_FALSE(says(type)) << type;
  EXPECT_THAT(heard_, ElementsAre("made"));
  EXPECT_EQ(asked_count_, 1);
}

TEST_F(ContextMakingTest, ADriverThatCannotBeStartedIsToldAndAsksForNothing) {
  EXPECT_TRUE(says("context_failed", {{"message", "CUDA_ERROR_NO_DEVICE in cuInit"}}));
  EXPECT_THAT(heard_, ElementsAre(HasSubstr("CUDA_ERROR_NO_DEVICE in cuInit")));
  EXPECT_EQ(asked_count_, 0);
  EXPECT_FALSE(making_->has_context());
}

TEST_F(ContextMakingTest, AContextThatCannotBeMadeIsToldAndItsLeaseEndsWithItsProcess) {
  begin();
  EXPECT_TRUE(says("context_failed", {{"message", "CUDA_ERROR_OUT_OF_MEMORY"}}));
  EXPECT_THAT(heard_, ElementsAre(HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")));
  EXPECT_EQ(kind_, ErrorKind::kEnvironment);
  EXPECT_THAT(ended_, IsEmpty()) << "part of it may be on the device";
  EXPECT_FALSE(making_->has_context());
  pass(limits::kContextWait);
  EXPECT_EQ(heard_.size(), 1u) << "once";
  making_->on_runtime_gone();
  EXPECT_THAT(ended_, ElementsAre(true));
}

TEST_F(ContextMakingTest, ALongReasonIsCut) {
  begin();
  EXPECT_TRUE(says("context_failed", {{"message", std::string(1 << 16, 'x')}}));
  EXPECT_LT(heard_[0].size(), size_t{2} * limits::kShownBytesMax);
  making_->on_runtime_gone();
  EXPECT_EQ(ended_.size(), 1u);
}

TEST_F(ContextMakingTest, OneThatIsNotMadeInTimeKeepsItsLeaseUntilItsProcessIsGone) {
  begin();
  pass(limits::kContextWait);
  EXPECT_THAT(heard_, ElementsAre("a CUDA context was not made in time"));
  EXPECT_EQ(kind_, ErrorKind::kTimeout) << "which may pass";
  EXPECT_THAT(ended_, IsEmpty()) << "it may be in the device's way still";
  EXPECT_TRUE(making_->has_context());
  making_->on_runtime_gone();
  EXPECT_THAT(ended_, ElementsAre(true));
}

TEST_F(ContextMakingTest, WaitingForTheLeaseHasNoEnd) {
  EXPECT_TRUE(says("initialised"));
  pass(std::chrono::hours(5));
  EXPECT_THAT(heard_, IsEmpty());
  EXPECT_THAT(ended_, IsEmpty());
}

TEST_F(ContextMakingTest, OnceAProgramHasComeNothingMoreIsBegun) {
  making_->stop();
  EXPECT_TRUE(says("initialised"));
  EXPECT_EQ(asked_count_, 0);
  EXPECT_THAT(told_, ElementsAre("initialise"));
}

TEST_F(ContextMakingTest, AProgramThatComesWhileItWaitsWithdrawsTheLease) {
  EXPECT_TRUE(says("initialised"));
  making_->stop();
  EXPECT_THAT(ended_, ElementsAre(false));
  grant();  // it was on its way
  EXPECT_THAT(told_, ElementsAre("initialise"));
  EXPECT_FALSE(making_->has_context());
  EXPECT_THAT(heard_, IsEmpty());
}

TEST_F(ContextMakingTest, AProgramThatComesMeanwhileGetsItAndHearsOfNoFailure) {
  begin();
  making_->stop();
  EXPECT_THAT(ended_, IsEmpty());
  pass(limits::kContextWait);
  EXPECT_THAT(heard_, IsEmpty());
  making_->on_runtime_gone();
  EXPECT_THAT(ended_, ElementsAre(true));
}

TEST_F(ContextMakingTest, AProgramThatComesMeanwhileGetsWhatIsMadeThen) {
  begin();
  making_->stop();
  EXPECT_TRUE(says("context_made"));
  EXPECT_TRUE(making_->is_made());
  EXPECT_THAT(ended_, ElementsAre(false));
  EXPECT_THAT(heard_, IsEmpty()) << "nobody stands by any more";
}

TEST_F(ContextMakingTest, ALeaseEndsWithItAtTheLatest) {
  begin();
  making_.reset();
  EXPECT_EQ(ended_.size(), 1u);
}

TEST_F(ContextMakingTest, AProcessThatEndsWhileItWaitsHadNothingOnTheDevice) {
  EXPECT_TRUE(says("initialised"));
  making_->on_runtime_gone();
  EXPECT_EQ(ended_.size(), 1u);
  making_.reset();
  EXPECT_EQ(ended_.size(), 1u) << "once";
}

}  // namespace
}  // namespace kcoral::executor
