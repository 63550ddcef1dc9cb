#include "scheduler/lease_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace kcoral::scheduler {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using Wanted = LeaseTable::Wanted;

class Leasing : public testing::Test {
 protected:
  LeaseId ask(int priority, std::vector<int> devices, size_t count = 1) {
    return table_.ask({priority, std::move(devices), count}, now_);
  }
  std::vector<LeaseId> granted() {
    std::vector<LeaseId> leases;
    for (const auto& grant : table_.grant(now_)) leases.push_back(grant.lease);
    return leases;
  }
  bool is_held(LeaseId lease) const {
    const auto devices = table_.view();
    return std::any_of(devices.begin(), devices.end(), [lease](const auto& device) { return device.holder == lease; });
  }
  LeaseTable table_{{0, 1, 2, 3}};
  SteadyTime now_{};
};

TEST_F(Leasing, FirstComeFirstServedOnOneDevice) {
  const LeaseId first = ask(0, {0}), second = ask(0, {0}), elsewhere = ask(0, {1});
  EXPECT_THAT(granted(), ElementsAre(first, elsewhere));
  EXPECT_THAT(granted(), IsEmpty());
  EXPECT_THAT(table_.end(first, true, now_), ElementsAre(0));
  EXPECT_THAT(granted(), ElementsAre(second));
}

TEST_F(Leasing, PriorityGoesFirst) {
  const LeaseId holder = ask(0, {0});
  granted();
  const LeaseId low = ask(-1, {0}), high = ask(5, {0}), also_high = ask(5, {0});
  table_.end(holder, true, now_);
  EXPECT_THAT(granted(), ElementsAre(high));
  table_.end(high, true, now_);
  EXPECT_THAT(granted(), ElementsAre(also_high));
  table_.end(also_high, true, now_);
  EXPECT_THAT(granted(), ElementsAre(low));
}

TEST_F(Leasing, EndsOnceAndAWithdrawnOneIsNeverGranted) {
  const LeaseId holder = ask(0, {0}), withdrawn = ask(0, {0}), last = ask(0, {0});
  granted();
  EXPECT_THAT(table_.end(withdrawn, true, now_), IsEmpty());
  EXPECT_THAT(table_.end(holder, true, now_), ElementsAre(0));
  EXPECT_THAT(granted(), ElementsAre(last));
  EXPECT_THAT(table_.end(holder, true, now_), IsEmpty());
  EXPECT_THAT(table_.end(12345, true, now_), IsEmpty());
  EXPECT_TRUE(is_held(last));
}

TEST_F(Leasing, SeveralDevicesAreGrantedWholeInTheirOrder) {
  const LeaseId holder = ask(0, {1});
  granted();
  const LeaseId three = ask(0, {}, 3);
  const auto grants = table_.grant(now_);
  ASSERT_EQ(grants.size(), 1u);
  EXPECT_EQ(grants[0].lease, three);
  EXPECT_THAT(grants[0].devices, ElementsAre(0, 2, 3));
  table_.end(holder, true, now_);
  const LeaseId four = ask(0, {}, 4);
  EXPECT_THAT(granted(), IsEmpty());
  table_.end(three, true, now_);
  EXPECT_THAT(granted(), ElementsAre(four));
}

TEST_F(Leasing, FirstWhoWaitsForSeveralIsNotOvertaken) {
  const LeaseId a = ask(0, {0}), b = ask(0, {1}), c = ask(0, {2}), d = ask(0, {3});
  granted();
  const LeaseId both = ask(0, {}, 2), late = ask(0, {0});
  table_.end(a, true, now_);
  EXPECT_THAT(granted(), IsEmpty()) << "device 0 is kept for the one that waits for two";
  table_.end(c, true, now_);
  const auto grants = table_.grant(now_);
  ASSERT_EQ(grants.size(), 1u);
  EXPECT_EQ(grants[0].lease, both);
  EXPECT_THAT(grants[0].devices, ElementsAre(0, 2));
  table_.end(both, true, now_);
  EXPECT_THAT(granted(), ElementsAre(late));
  EXPECT_TRUE(is_held(b) && is_held(d));
}

TEST_F(Leasing, DeviceThatIsNotClearYetIsHeldBack) {
  const LeaseId holder = ask(0, {0}), next = ask(0, {0});
  granted();
  table_.end(holder, /*clear=*/false, now_);
  EXPECT_THAT(granted(), IsEmpty());
  EXPECT_EQ(table_.view()[0].use, LeaseTable::DeviceUse::kClearing);
  table_.quarantine(0, now_);
  EXPECT_THAT(granted(), IsEmpty());
  EXPECT_TRUE(table_.view()[0].is_quarantined);
  table_.set_clear(0);
  EXPECT_THAT(granted(), ElementsAre(next));
}

TEST_F(Leasing, NobodyIsGivenADeviceWhoseHolderCannotBeEnded) {
  const LeaseId holder = ask(0, {0}), next = ask(0, {0});
  granted();
  table_.quarantine(0, now_);
  EXPECT_TRUE(is_held(holder));
  table_.end(holder, /*clear=*/false, now_);
  EXPECT_TRUE(table_.view()[0].is_quarantined);
  EXPECT_THAT(granted(), IsEmpty());
  table_.set_clear(0);
  EXPECT_THAT(granted(), ElementsAre(next));
}

TEST_F(Leasing, NothingIsKeptForWhomOnlyAQuarantinedDeviceWouldServe) {
  const LeaseId broken = ask(0, {3});
  granted();
  table_.quarantine(3, now_);
  const LeaseId all = ask(0, {}, 4), exactly = ask(0, {2, 3}), three = ask(0, {}, 3), one = ask(-1, {2});
  EXPECT_THAT(granted(), ElementsAre(three)) << "those before it would wait for device 3";
  table_.end(three, true, now_);
  EXPECT_THAT(granted(), ElementsAre(one));
  table_.end(one, true, now_);
  table_.end(broken, /*clear=*/false, now_);
  table_.set_clear(3);
  EXPECT_THAT(granted(), ElementsAre(all));
  table_.end(all, true, now_);
  EXPECT_THAT(granted(), ElementsAre(exactly));
}

TEST_F(Leasing, StrandedIsWhoeverNeedsADeviceThatHasBeenQuarantinedForSoLong) {
  const LeaseId two = ask(0, {2}), three = ask(0, {3});
  granted();
  const LeaseId exactly = ask(0, {3}), both = ask(0, {2, 3}), all = ask(0, {}, 4);
  ask(0, {2});
  const LeaseId most = ask(0, {}, 3);
  const auto stranded = [this](SteadyTime since) {
    std::vector<std::pair<LeaseId, std::vector<int>>> found;
    for (const auto& each : table_.stranded(since)) found.emplace_back(each.lease, each.devices);
    return found;
  };
  using One = std::pair<LeaseId, std::vector<int>>;
  const SteadyTime first = now_ += milliseconds(1);
  EXPECT_THAT(stranded(first), IsEmpty());
  table_.quarantine(3, first);
  EXPECT_THAT(stranded(first - milliseconds(1)), IsEmpty());
  const auto without_three = ElementsAre(One{exactly, {3}}, One{both, {3}}, One{all, {3}});
  EXPECT_THAT(stranded(first), without_three);
  const SteadyTime second = now_ += milliseconds(1);
  table_.quarantine(2, second);
  table_.quarantine(3, second);
  EXPECT_THAT(stranded(first), without_three) << "the first counts";
  EXPECT_EQ(stranded(second).size(), 5u);
  EXPECT_THAT(stranded(second).back(), One(most, {2, 3}));
  table_.end(three, /*clear=*/false, now_);
  EXPECT_EQ(stranded(second).size(), 5u);
  table_.set_clear(3);
  table_.end(two, /*clear=*/true, now_);
  EXPECT_THAT(stranded(second), IsEmpty());
}

TEST_F(Leasing, WordsAboutADeviceInOtherHandsChangeNothing) {
  const LeaseId holder = ask(0, {0});
  granted();
  table_.set_clear(0);
  EXPECT_TRUE(is_held(holder));
  EXPECT_EQ(table_.view()[0].use, LeaseTable::DeviceUse::kHeld);
  table_.quarantine(1, now_);
  EXPECT_FALSE(table_.view()[1].is_quarantined) << "nobody has it";
}

TEST_F(Leasing, IdleTimeBetweenHoldersIsThatWithSomebodyWaiting) {
  const LeaseId holder = ask(0, {0});
  granted();
  table_.end(holder, true, now_);
  now_ += milliseconds(500);  // nobody waits
  const LeaseId second = ask(0, {0});
  granted();
  const LeaseId third = ask(0, {0});
  now_ += milliseconds(10);
  table_.end(second, /*clear=*/false, now_);
  now_ += milliseconds(7);
  table_.set_clear(0);
  const auto grants = table_.grant(now_);
  ASSERT_EQ(grants.size(), 1u);
  EXPECT_EQ(grants[0].lease, third);
  EXPECT_EQ(grants[0].waited, milliseconds(17));
  EXPECT_EQ(table_.view()[0].handovers, 1u);
  EXPECT_EQ(table_.view()[0].idle_between, milliseconds(7));
}

TEST_F(Leasing, RandomUseKeepsEveryPromise) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::map<LeaseId, std::vector<int>> held;
  std::map<LeaseId, Wanted> waiting;
  std::set<int> held_back;
  for (int step = 0; step < 20000; ++step) {
    now_ += milliseconds(1);
    if (random() % 2 == 0 && waiting.size() < 30) {
      Wanted wanted{static_cast<int>(random() % 3), {}, 1 + random() % 4};
      if (random() % 2 == 0) wanted = {wanted.priority, {static_cast<int>(random() % 4)}, 1};
      waiting[table_.ask(wanted, now_)] = wanted;
    } else if (!held.empty()) {
      auto lease = std::next(held.begin(), static_cast<int>(random() % held.size()));
      const bool clear = random() % 3 != 0;
      if (!clear) {
        held_back.insert(lease->second.begin(), lease->second.end());
        if (random() % 4 == 0) table_.quarantine(lease->second.front(), now_);
      }
      ASSERT_EQ(table_.end(lease->first, clear, now_), lease->second);
      held.erase(lease);
    } else if (!held_back.empty()) {
      table_.set_clear(*held_back.begin());
      held_back.erase(held_back.begin());
    }
    std::set<LeaseId> stranded;
    for (const auto& each : table_.stranded(now_)) stranded.insert(each.lease);
    for (const auto& grant : table_.grant(now_)) {
      ASSERT_TRUE(waiting.contains(grant.lease));
      ASSERT_FALSE(stranded.contains(grant.lease));
      const Wanted& wanted = waiting[grant.lease];
      ASSERT_EQ(grant.devices.size(), wanted.devices.empty() ? wanted.count : 1u);
      ASSERT_TRUE(std::is_sorted(grant.devices.begin(), grant.devices.end()));
      for (const auto& [other, devices] : held) {
        for (const int device : devices) ASSERT_THAT(grant.devices, testing::Not(testing::Contains(device)));
      }
      for (const int device : held_back) ASSERT_THAT(grant.devices, testing::Not(testing::Contains(device)));
      // Nobody of its kind that asked before it, with its priority or a higher one, waits on.
      for (const auto& [other, others] : waiting) {
        if (other < grant.lease && others.priority >= wanted.priority && others.devices == wanted.devices &&
            others.count <= wanted.count) {
          ADD_FAILURE() << "lease " << grant.lease << " overtook " << other;
        }
      }
      held[grant.lease] = grant.devices;
      waiting.erase(grant.lease);
    }
  }
}

}  // namespace
}  // namespace kcoral::scheduler
