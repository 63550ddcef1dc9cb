#include "executor/supervisor/device_lease.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace kcoral::executor {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DeviceLeaseTest : public testing::Test {
 protected:
  static Frame frame(const json& body) {
    Frame received;
    received.body = *parse_frame(body.dump());
    return received;
  }
  static Frame grant_of(int lease) {
    return frame({{"type", "lease_granted"}, {"lease", lease}, {"devices", std::vector<int>{3}}});
  }
  static Frame denial_of(int lease) {
    return frame({{"type", "lease_denied"}, {"lease", lease}, {"message", "quarantined"}});
  }
  std::unique_ptr<DeviceLease> ask() {
    return leases_.ask({.devices = {3}}, {.granted = [this] { heard_.push_back("granted"); },
                                          .denied = [this](const std::string& why) { heard_.push_back(why); }});
  }

  FakeClock clock_;
  std::vector<int> ended_;
  std::vector<std::string> heard_;
  DeviceLeases leases_{clock_, [this](const json& body) {
                         if (body.at("type") == "lease_end") ended_.push_back(body.at("lease"));
                       }};
};

TEST_F(DeviceLeaseTest, AGrantIsHeldUntilItsEnd) {
  auto lease = ask();
  clock_.advance(std::chrono::milliseconds(5));
  ASSERT_TRUE(leases_.take_grant(grant_of(1)));
  clock_.advance(std::chrono::milliseconds(7));
  EXPECT_THAT(heard_, ElementsAre("granted"));
  EXPECT_THAT(lease->devices(), ElementsAre(3));
  EXPECT_TRUE(lease->is_held());
  EXPECT_EQ(lease->waited(), std::chrono::milliseconds(5));
  EXPECT_EQ(lease->held(), std::chrono::milliseconds(7));
  lease->end(/*processes_ended=*/false);
  lease.reset();
  EXPECT_THAT(ended_, ElementsAre(1)) << "once";
}

TEST_F(DeviceLeaseTest, ADenialIsToldOnceAndTheLeaseIsStillToBeEnded) {
  auto lease = ask();
  ASSERT_TRUE(leases_.take_denial(denial_of(1)));
  EXPECT_THAT(heard_, ElementsAre("quarantined"));
  EXPECT_FALSE(lease->is_held());
  EXPECT_THAT(ended_, IsEmpty());
  lease.reset();
  EXPECT_THAT(ended_, ElementsAre(1));
}

TEST_F(DeviceLeaseTest, AnswersThatCrossTheEndChangeNothing) {
  ask()->end(/*processes_ended=*/true);
  EXPECT_TRUE(leases_.take_denial(denial_of(1)));
  EXPECT_TRUE(leases_.take_grant(grant_of(1)));
  EXPECT_THAT(heard_, IsEmpty());
  EXPECT_THAT(ended_, ElementsAre(1));
}

TEST_F(DeviceLeaseTest, AServerThatAnswersTwiceIsNotBelieved) {
  const auto denied = ask(), granted = ask();
  ASSERT_TRUE(leases_.take_denial(denial_of(1)));
  ASSERT_TRUE(leases_.take_grant(grant_of(2)));
  for (const int lease : {1, 2}) {
    EXPECT_THAT(leases_.take_grant(grant_of(lease)).error().message, HasSubstr("answered before")) << lease;
    EXPECT_THAT(leases_.take_denial(denial_of(lease)).error().message, HasSubstr("answered before")) << lease;
  }
  EXPECT_THAT(heard_, ElementsAre("quarantined", "granted"));
}

TEST_F(DeviceLeaseTest, OneThatWaitsOnIsNeverDenied) {
  const auto lease = leases_.ask({.purpose = LeasePurpose::kContext, .devices = {3}}, {.granted = [] {}});
  EXPECT_EQ(leases_.take_denial(denial_of(1)).error().kind, ErrorKind::kEngine);
}

TEST_F(DeviceLeaseTest, MalformedAnswersAreRefused) {
  const auto lease = ask();
  EXPECT_FALSE(leases_.take_denial(frame({{"type", "lease_denied"}, {"lease", 1}})));
  EXPECT_FALSE(leases_.take_denial(frame({{"type", "lease_denied"}, {"message", "why"}})));
  EXPECT_FALSE(leases_.take_grant(frame({{"type", "lease_granted"}, {"lease", 1}, {"devices", "3"}})));
  EXPECT_THAT(heard_, IsEmpty());
}

}  // namespace
}  // namespace kcoral::executor
