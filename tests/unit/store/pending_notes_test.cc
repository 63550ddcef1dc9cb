#include "store/pending_notes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kcoral::store {
namespace {

using testing::ElementsAre;

RunNotes record(std::string members) {
  RunNotes notes;
  notes.records.push_back({WallTime(), std::move(members)});
  return notes;
}

std::vector<std::string> records_of(const RunNotes& notes) {
  std::vector<std::string> members;
  for (const AuditRecord& record : notes.records) members.push_back(record.members);
  return members;
}

class PendingNotesTest : public testing::Test {
 protected:
  const Fence first_{Uuid::random(), 1};
  const Fence second_{first_.request_id, 2};
  const Fence other_{Uuid::random(), 1};
  PendingNotes pending_;
};

TEST_F(PendingNotesTest, SomebodyIsToldToTakeThemOnce) {
  EXPECT_TRUE(pending_.add(first_, record("a")));
  EXPECT_FALSE(pending_.add(other_, record("b")));
  RunNotes taken;
  pending_.take(first_, taken);
  EXPECT_FALSE(pending_.add(first_, record("c"))) << "whoever was told before takes these, too";
  PendingNotes::ByRun all;
  pending_.take_all(all);
  EXPECT_TRUE(pending_.add(first_, record("d")));
  EXPECT_THAT(records_of(taken), ElementsAre("a"));
  EXPECT_THAT(records_of(all[first_]), ElementsAre("c"));
  EXPECT_THAT(records_of(all[other_]), ElementsAre("b"));
}

TEST_F(PendingNotesTest, WhatIsPutBackComesBeforeWhatCameMeanwhile) {
  RunNotes runs = record("running");
  runs.pid = 7;
  ASSERT_TRUE(pending_.add(first_, std::move(runs)));
  PendingNotes::ByRun taken;
  pending_.take_all(taken);
  ASSERT_TRUE(pending_.add(first_, record("later")));
  EXPECT_FALSE(pending_.put_back(std::move(taken))) << "whoever was told of the later takes these, too";
  RunNotes all;
  pending_.take(first_, all);
  EXPECT_THAT(records_of(all), ElementsAre("running", "later"));
  EXPECT_EQ(all.pid, 7);
}

TEST_F(PendingNotesTest, ThoseOfARequestAreOfAllItsAttemptsAndNoOther) {
  ASSERT_TRUE(pending_.add(first_, record("one")));
  for (const auto& [fence, text] : {std::pair(second_, "two"), std::pair(other_, "other")}) {
    EXPECT_FALSE(pending_.add(fence, record(text)));
  }
  PendingNotes::ByRun taken;
  pending_.take(first_.request_id, taken);
  EXPECT_EQ(taken.size(), 2U);
  EXPECT_THAT(records_of(taken[second_]), ElementsAre("two"));
}

}  // namespace
}  // namespace kcoral::store
