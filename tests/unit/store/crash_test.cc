// Kills a process that works with the store, again and again, and looks at what it left.
//
// The child (this program with --child) submits and executes on several threads and says on its standard output what
// the store has told it: one line each, written before anything else happens. The parent kills it after a random number
// of lines, opens the store and compares. All rounds share one data directory, and so does all that was ever promised.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "tests/unit/store/store_fixture.h"

extern char** environ;

namespace kcoral::store {
namespace {

using schema::State;

constexpr int kRounds = 12;
constexpr int kMaxAttempts = 3;

// --- the child ---

void say(const std::string& line) {
  // One write of less than PIPE_BUF: lines of several threads do not mix.
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) std::_Exit(3);
}

std::string patterned(std::mt19937& random, size_t size) {
  std::string bytes(size, '\0');
  const auto start = random();
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(start + i / 512);
  return bytes;
}

size_t some_size(std::mt19937& random) {
  return random() % 12 == 0 ? limits::kMiB + random() % (2 * limits::kMiB) : random() % 3000;
}

void submit_for_ever(Store& store, unsigned seed) {
  std::mt19937 random(seed);
  for (;;) {
    std::vector<StagedBlob> blobs;
    if (random() % 2 == 0) blobs.push_back(staged(patterned(random, some_size(random))));
    Submission sent = submission_with(blobs);
    sent.max_attempts = 1 + static_cast<int>(random() % kMaxAttempts);
    sent.program.options.priority = static_cast<int>(random() % 3);
    const std::string id = sent.request_id.str();
    say("sent " + id);
    Slot<Result<Admission>> admission;
    store.admit(std::move(sent), admission.setter());
    if (!admission.get()) std::_Exit(4);
    say("admitted " + id);
  }
}

void execute_for_ever(Store& store, TestPool& pool, unsigned seed) {
  std::mt19937 random(seed);
  for (;;) {
    const auto claimed = pool.claim(store, {fmt::format("executor-{}", seed), 1}).value();
    if (!claimed) {
      std::this_thread::yield();
      continue;
    }
    const Fence fence = claimed->fence;
    say(fmt::format("claimed {} {}", fence.request_id.str(), fence.attempt));
    store.mark_running(fence, 1);
    store.append_audit(fence, {{Clock::system().wall_now(), R"("event":"instruction_started")"}});
    Slot<Status> done;
    if (random() % 6 == 0) {
      store.abandon(fence, "its executor died", done.setter());
      if (!done.get()) std::_Exit(5);
      continue;
    }
    const auto ended = answer(fmt::format(R"({{"attempt":{},"nonce":{}}})", fence.attempt, random()),
                              {patterned(random, some_size(random)), "", patterned(random, some_size(random))});
    const std::string digest = Sha256::of(body_of(*ended)).hex();
    store.finish(fence, completion(ended), done.setter());
    if (!done.get()) std::_Exit(6);
    say(fmt::format("finished {} {}", fence.request_id.str(), digest));
  }
}

[[noreturn]] void run_child(const std::string& data_dir, unsigned seed) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto store = open_store({.data_dir = data_dir}, Clock::system());
  if (!store) std::_Exit(2);
  say("opened");
  if (!(*store)->recover()) std::_Exit(2);
  TestPool pool;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 3; ++i) threads.emplace_back([&, i] { submit_for_ever(**store, seed * 16 + i); });
  for (unsigned i = 3; i < 5; ++i) threads.emplace_back([&, i] { execute_for_ever(**store, pool, seed * 16 + i); });
  for (std::thread& thread : threads) thread.join();
  std::_Exit(0);
}

// --- the parent ---

struct Promised {
  bool admitted = false;
  int attempt = 0;       // the highest that was handed out
  std::string finished;  // digest of the body whose finish was acknowledged
  std::string seen;      // digest of the body that an earlier round read
};

class CrashTest : public testing::Test {
 protected:
  /// Lets a child work until it has said `line_count` lines, then kills it.
  void run_and_kill(unsigned seed, int line_count) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd reading(ends[0]);
    UniqueFd writing(ends[1]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
    std::vector<std::string> words = {"store_crash_test", "--child", data_dir_, std::to_string(seed)};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t child = -1;
    ASSERT_EQ(::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments.data(), environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    writing.reset();

    std::FILE* lines = ::fdopen(::dup(reading.get()), "r");
    ASSERT_NE(lines, nullptr);
    char line[256];
    bool killed = line_count == 0 && ::kill(child, SIGKILL) == 0;
    for (int count = 0; std::fgets(line, sizeof line, lines) != nullptr;) {
      note(line);
      if (++count >= line_count && !killed) killed = ::kill(child, SIGKILL) == 0;
    }
    std::fclose(lines);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child ended by itself, status " << status;
  }

  void note(const std::string& line) {
    std::istringstream words(line);
    std::string what;
    std::string id;
    words >> what >> id;
    if (what == "opened") return;
    Promised& promised = promised_[*Uuid::parse(id)];
    if (what == "admitted") promised.admitted = true;
    if (what == "claimed") {
      int attempt = 0;
      words >> attempt;
      EXPECT_GT(attempt, promised.attempt) << "an attempt was handed out twice: " << id;
      promised.attempt = attempt;
    }
    if (what == "finished") words >> promised.finished;
  }

  void check() {
    check_requests();
    EXPECT_EQ(RawContent(data_dir_ + "/content").nameless(), std::vector<ContentId>{});
  }

  void check_requests() {
    auto store = DurableStore::open({.data_dir = data_dir_}, Clock::system()).value();
    ASSERT_TRUE(store->recover());
    uint64_t queued = 0;
    for (auto& [id, promised] : promised_) {
      const auto row = status_in(*store, id);
      ASSERT_TRUE(row || !promised.admitted) << "lost: " << id.str();
      if (!row) continue;
      promised.admitted = true;
      if (row->state == State::kQueued) ++queued;
      check_request(*store, *row, promised);
    }
    EXPECT_EQ(store->counts().queued, queued);
    EXPECT_EQ(store->counts().in_progress, 0u);
  }

  void check_request(Store& store, const RequestStatus& row, Promised& promised) {
    SCOPED_TRACE(row.request_id.str());
    EXPECT_LE(row.attempt, row.max_attempts);
    EXPECT_GE(row.attempt, promised.attempt);
    EXPECT_TRUE(row.state == State::kQueued || schema::is_terminal(row.state));
    if (schema::is_terminal(row.state)) {
      Slot<Result<Store::AnswerPtr>> slot;
      store.watch(row.request_id, slot.setter());
      const auto read = slot.get();
      ASSERT_TRUE(read) << read.error().message;
      const std::string digest = Sha256::of(body_of(**read)).hex();
      EXPECT_TRUE(promised.finished.empty() || digest == promised.finished) << "not the outcome that was acknowledged";
      EXPECT_TRUE(promised.seen.empty() || digest == promised.seen) << "a second outcome";
      promised.seen = digest;
    } else {
      EXPECT_TRUE(promised.finished.empty()) << "an outcome was lost";
      EXPECT_TRUE(promised.seen.empty()) << "an outcome was undone";
    }
    const auto records = audit_in(store, row.request_id).value();
    expect_sound_audit(records);
    const auto events = events_of(records);
    EXPECT_EQ(std::count(events.begin(), events.end(), "admitted"), 1);
    EXPECT_EQ(std::count(events.begin(), events.end(), "assigned"), row.attempt);
    EXPECT_EQ(std::count(events.begin(), events.end(), "finished"), schema::is_terminal(row.state) ? 1 : 0);
    EXPECT_EQ(std::count(events.begin(), events.end(), "requeued"),
              row.state == State::kQueued || row.attempt == 0 ? row.attempt : row.attempt - 1);
  }

  TempDir dir_;
  const std::string data_dir_ = dir_.path() + "/data";
  std::map<Uuid, Promised> promised_;
};

TEST_F(CrashTest, NothingThatWasPromisedIsLostWhenItIsKilled) {
  const char* const given = std::getenv("KCORAL_TEST_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::stoul(given)) : std::random_device()();
  std::printf("seed %u (set KCORAL_TEST_SEED to repeat its choices)\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < kRounds && !HasFatalFailure(); ++round) {
    // Now and then in the middle of opening or recovering.
    const int lines = random() % 4 == 0 ? static_cast<int>(random() % 3) : static_cast<int>(random() % 400);
    SCOPED_TRACE(fmt::format("round {}, killed after {} lines", round, lines));
    run_and_kill(static_cast<unsigned>(random()), lines);
    check();
  }
  int admitted = 0;
  int finished = 0;
  for (const auto& [id, promised] : promised_) {
    admitted += promised.admitted;
    finished += !promised.finished.empty();
  }
  std::printf("%d requests admitted, %d answers acknowledged\n", admitted, finished);
}

}  // namespace
}  // namespace kcoral::store

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--child") == 0) {
    kcoral::store::run_child(argv[2], static_cast<unsigned>(std::stoul(argv[3])));
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
