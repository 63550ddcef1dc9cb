// The history: every filter, and pages that neither skip nor repeat.
#include <random>
#include <set>

#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

using schema::State;
using testing::ElementsAre;
using testing::IsEmpty;
using namespace std::chrono_literals;

class HistoryTest : public StoreFixture {
 protected:
  Uuid submit(const std::string& client, std::map<std::string, std::string> labels = {}) {
    clock_.advance(1s);
    Submission sent = submission();
    sent.client = client;
    sent.program.options.labels = std::move(labels);
    return admitted(std::move(sent));
  }
  static std::vector<Uuid> ids_of(const HistoryPage& page) {
    std::vector<Uuid> ids;
    for (const RequestStatus& each : page.requests) ids.push_back(each.request_id);
    return ids;
  }
  std::vector<Uuid> found(const HistoryQuery& query) { return ids_of(history(query)); }
};

TEST_F(HistoryTest, TheNewestComesFirst) {
  const Uuid a = submit("a");
  const Uuid b = submit("b");
  const Uuid c = submit("a");
  const HistoryPage page = history();
  EXPECT_THAT(ids_of(page), ElementsAre(c, b, a));
  EXPECT_FALSE(page.next);
  EXPECT_EQ(page.requests[0].client, "a");
  EXPECT_EQ(page.requests[0].queue_position, 1u);
  EXPECT_EQ(page.requests[1].queue_position, 0u);
}

TEST_F(HistoryTest, EachFilterAndTheirCombinations) {
  const Uuid a = submit("a", {{"kind", "gemm"}, {"round", "1"}});
  const WallTime before_b = clock_.wall_now() + 1s;
  const Uuid b = submit("b", {{"kind", "add"}});
  const Uuid c = submit("a", {{"kind", "add"}});
  const Uuid d = submit("b");
  ASSERT_TRUE(cancel(b));
  ASSERT_TRUE(cancel(d));

  HistoryQuery query;
  query.client = "a";
  EXPECT_THAT(found(query), ElementsAre(c, a));
  query = {};
  query.state = State::kCancelled;
  EXPECT_THAT(found(query), ElementsAre(d, b));
  query.client = "a";
  EXPECT_THAT(found(query), IsEmpty());
  query = {};
  query.state = State::kQueued;
  EXPECT_THAT(found(query), ElementsAre(c, a));
  query = {};
  query.label.emplace("kind", std::nullopt);
  EXPECT_THAT(found(query), ElementsAre(c, b, a));
  query.label.emplace("kind", "add");
  EXPECT_THAT(found(query), ElementsAre(c, b));
  query.state = State::kCancelled;
  query.client = "b";
  EXPECT_THAT(found(query), ElementsAre(b));
  query = {};
  query.since = before_b;
  EXPECT_THAT(found(query), ElementsAre(d, c, b));
  query.until = before_b + 1s;
  EXPECT_THAT(found(query), ElementsAre(b));
  query.since.reset();
  EXPECT_THAT(found(query), ElementsAre(b, a));
}

TEST_F(HistoryTest, PagesNeitherSkipNorRepeatWhileRequestsArriveAndEnd) {
  std::vector<Uuid> expected;
  for (int i = 0; i < 25; ++i) {
    // Several at one instant, and a clock that was set back.
    if (i % 5 == 0) clock_.advance(1s);
    if (i == 12) clock_.step_wall(-3600s);
    expected.push_back(admitted(submission()));
  }
  HistoryQuery query;
  query.count_max = 4;
  std::set<Uuid> seen;
  for (int page_number = 0;; ++page_number) {
    ASSERT_LT(page_number, 10);
    const HistoryPage page = history(query);
    for (const RequestStatus& each : page.requests) EXPECT_TRUE(seen.insert(each.request_id).second) << "repeated";
    if (!page.next) break;
    EXPECT_EQ(page.requests.size(), 4u);
    query.after = page.next;
    clock_.advance(7200s);
    admitted(submission());
    if (page_number < 3) {
      ASSERT_TRUE(cancel(expected[static_cast<size_t>(page_number)]));
    }
  }
  EXPECT_EQ(seen, std::set<Uuid>(expected.begin(), expected.end()));
}

TEST_F(HistoryTest, APageThatIsJustFullSaysThatNothingIsLeft) {
  submit("a");
  submit("a");
  HistoryQuery query;
  query.count_max = 2;
  EXPECT_FALSE(history(query).next);
  query.count_max = 1;
  const auto next = history(query).next;
  ASSERT_TRUE(next);
  query.after = next;
  EXPECT_FALSE(history(query).next);
}

TEST_F(HistoryTest, ProgramsAreKeptByteForByte) {
  const std::string text = R"({ "instructions" : [ ] })";
  const std::string long_text = R"({"instructions":[")" + std::string(100'000, 'x') + R"("]})";
  for (const std::string& each : {text, long_text}) {
    const Uuid id = admitted(submission(each));
    Slot<Result<std::string>> slot;
    store_->program(id, slot.setter());
    EXPECT_EQ(slot.get().value(), each);
  }
  Slot<Result<std::string>> slot;
  store_->program(Uuid::random(), slot.setter());
  EXPECT_EQ(slot.get().error().kind, ErrorKind::kNotFound);
}

TEST_F(HistoryTest, AStatusHasTheTimesAndDevicesOfItsRun) {
  const Uuid id = admitted(submission());
  const Fence fence = claim()->fence;
  EXPECT_FALSE(status(id)->times);
  store_->note_gpus(fence, {1, 3});
  Completion with = completion(answer("{}"));
  with.times = {1, 2, 3, 4};
  with.results_summary = R"([{"key":"y","type":"json","size":2}])";
  ASSERT_TRUE(finish(fence, with));
  const RequestStatus read = status(id).value();
  ASSERT_TRUE(read.times);
  EXPECT_EQ(read.times->elapsed_ms, 2);
  EXPECT_EQ(read.times->lease_held_ms, 4);
  EXPECT_THAT(read.gpu_ids, ElementsAre(1, 3));
  EXPECT_EQ(read.results_summary, with.results_summary);
  EXPECT_FALSE(read.queue_position);
}

}  // namespace
}  // namespace kcoral::store
