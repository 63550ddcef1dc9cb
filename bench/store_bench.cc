// How many requests a second the store alone carries: each is admitted, claimed, marked as running, finished with an
// answer of one small part, and read by a watch.
//
//   store_bench DIRECTORY [SUBMITTERS] [REQUESTS] [PROGRAM_BYTES]
//
// SUBMITTERS threads send one request after another; eight executors claim whenever there is work, as the scheduler
// does.
//
//   store_bench DIRECTORY content [MIB] [ROUNDS]
//
// Instead: how long it takes to keep one answer of MIB MiB, from memory to synced, as one line of JSON. No program that
// returns as much can be answered sooner.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/samples.h"
#include "store/content.h"
#include "store/data_dir.h"
#include "store/store.h"

namespace kcoral::store {
namespace {

constexpr int kExecutors = 8;

/// Runs up to kExecutors requests at once, from callbacks only.
class Executors final : public ExecutorPool {
 public:
  explicit Executors(Store& store) : store_(store) {
    schema::Part part;
    part.extent.memory = SealedMemory::copy_of("a returned value").value();
    part.extent.length = part.extent.memory->size_bytes();
    part.sha256 = Sha256::of("a returned value");
    answer_ = std::make_shared<const schema::Answer>(schema::make_result_answer(R"({"status":"COMPLETED"})", {part}));
  }

  std::optional<ExecutorRef> take(bool for_several_gpus) override {
    if (for_several_gpus) return std::nullopt;
    for (int idle = idle_; idle > 0;) {
      if (idle_.compare_exchange_weak(idle, idle - 1)) return ExecutorRef{"executor", 1};
    }
    return std::nullopt;
  }
  void put_back(const ExecutorRef&) override { ++idle_; }
  void assign(const ExecutorRef&, Result<Claim> claim) override {
    KCORAL_CHECK(claim);
    run(claim->fence);
  }

 private:
  void run(const Fence& fence) {
    store_.mark_running(fence, 1);
    Completion completion;
    completion.answer = answer_;
    completion.reason = "every instruction ran";
    store_.finish(fence, std::move(completion), [this](const Status&) {
      ++idle_;
      store_.executor_became_idle();
    });
  }

  Store& store_;
  std::shared_ptr<const schema::Answer> answer_;
  std::atomic<int> idle_{kExecutors};
};

void submit(Store& store, const std::string& text, int count) {
  for (int i = 0; i < count; ++i) {
    Submission submission;
    submission.request_id = Uuid::random();
    submission.client = "bench";
    submission.program_text = text;
    submission.program_sha256 = Sha256::of(text);
    const Uuid id = submission.request_id;
    std::promise<void> ended;
    store.admit(std::move(submission), [&](Result<Admission> admission) {
      KCORAL_CHECK(admission);
      store.watch(id, [&](const Result<Store::AnswerPtr>& answer) {
        KCORAL_CHECK(answer);
        ended.set_value();
      });
    });
    ended.get_future().wait();
  }
}

void measure(const std::string& directory, int submitters, int requests, size_t program_bytes) {
  auto store = open_store({.data_dir = directory}, Clock::system());
  if (!store) {
    std::fprintf(stderr, "%s\n", store.error().message.c_str());
    return;
  }
  Executors executors(**store);
  KCORAL_CHECK((*store)->recover());
  (*store)->serve(executors);
  const std::string text(program_bytes, 'p');
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < submitters; ++i) {
    threads.emplace_back([&] { submit(**store, text, requests / submitters); });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const int done = requests / submitters * submitters;
  std::printf("%d submitters, %zu bytes of program: %d requests in %.2f s, %.0f a second, %.2f ms each\n", submitters,
              program_bytes, done, took.count(), done / took.count(), took.count() * 1000 * submitters / done);
  (*store)->close();
}

/// Bytes that do not compress.
std::string random_bytes(size_t size) {
  std::mt19937_64 random{std::random_device{}()};
  std::string bytes(size, '\0');
  for (size_t at = 0; at + sizeof(uint64_t) <= size; at += sizeof(uint64_t)) {
    const uint64_t number = random();
    std::memcpy(bytes.data() + at, &number, sizeof number);
  }
  return bytes;
}

Result<bench::Series> measure_content(const std::string& directory, size_t mib, int rounds) {
  auto data_dir = DataDir::open(directory);
  if (!data_dir) return fail(data_dir.error());
  auto content = Content::open(data_dir->content_path());
  if (!content) return fail(content.error());
  const std::string answer = random_bytes(mib << 20);
  bench::Series series;
  const bench::Stopwatch whole;
  for (int i = 0; i < rounds; ++i) {
    const std::string_view pieces[] = {answer};
    const bench::Stopwatch watch;
    if (const auto kept = (*content)->put_artifact(Uuid::random(), "header", pieces); !kept) return fail(kept.error());
    if (const Status synced = (*content)->sync(); !synced) return fail(synced.error());
    series.ms.push_back(watch.ms());
  }
  series.seconds = whole.ms() / 1e3;
  return series;
}

int report_content(const std::string& directory, size_t mib, int rounds) {
  const auto series = measure_content(directory, mib, rounds);
  if (!series) {
    std::fprintf(stderr, "%s\n", series.error().message.c_str());
    return 1;
  }
  const nlohmann::json line{
      {"mib", mib}, {"p50_ms", series->quantile(0.5)}, {"max_ms", series->quantile(1)}, {"ms", series->ms}};
  std::printf("%s\n", line.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace kcoral::store

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr,
                 "store_bench DIRECTORY [SUBMITTERS] [REQUESTS] [PROGRAM_BYTES]\n"
                 "store_bench DIRECTORY content [MIB] [ROUNDS]\n");
    return 1;
  }
  const auto number = [&](int index, int otherwise) { return argc > index ? std::atoi(argv[index]) : otherwise; };
  if (argc > 2 && std::string_view(argv[2]) == "content") {
    return kcoral::store::report_content(argv[1], static_cast<size_t>(number(3, 64)), number(4, 12));
  }
  kcoral::store::measure(argv[1], number(2, 8), number(3, 4000), static_cast<size_t>(number(4, 1024)));
  return 0;
}
