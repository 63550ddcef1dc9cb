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
// returns as much can be answered sooner. By turns, and so at the same disk, plain RocksDB keeps the same bytes.
//
//   store_bench DIRECTORY beside [MIB] [ROUNDS]
//
// Instead: two threads keep ROUNDS answers of MIB MiB each, while a third keeps small ones, one after another and each
// synced; and how long the small ones take alone.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bench/instant_executors.h"
#include "bench/plain_rocksdb.h"
#include "bench/samples.h"
#include "store/content.h"
#include "store/data_dir.h"
#include "store/store.h"

namespace kcoral::store {
namespace {

constexpr int kExecutors = 8;
constexpr size_t kSmallAnswerBytes = 32 << 10;  // one that is not kept with its request's row
constexpr int kSmallAnswersAlone = 200;
// Virtual disks allow bursts: who comes right after another would measure what that one has left of them.
constexpr std::chrono::milliseconds kRest{300};

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
  bench::InstantExecutors executors(**store, kExecutors);
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

/// The content of a data directory, which nobody else has meanwhile.
class OpenContent {
 public:
  static Result<OpenContent> open(const std::string& directory) {
    auto data_dir = DataDir::open(directory);
    if (!data_dir) return fail(data_dir.error());
    auto content = Content::open(data_dir->content_path());
    if (!content) return fail(content.error());
    return OpenContent(std::move(*data_dir), std::move(*content));
  }

  /// An answer, from memory to synced; in milliseconds.
  double keep(std::string_view answer) {
    const std::string_view pieces[] = {answer};
    const bench::Stopwatch watch;
    KCORAL_CHECK(content_->put_artifact(Uuid::random(), "header", pieces));
    KCORAL_CHECK(content_->sync());
    return watch.ms();
  }

 private:
  OpenContent(DataDir data_dir, std::unique_ptr<Content> content)
      : data_dir_(std::move(data_dir)), content_(std::move(content)) {}

  DataDir data_dir_;
  std::unique_ptr<Content> content_;
};

nlohmann::json figures(const bench::Series& series) {
  return {{"p50_ms", series.quantile(0.5)}, {"max_ms", series.quantile(1)}, {"ms", series.ms}};
}

Result<nlohmann::json> measure_content(const std::string& directory, size_t mib, int rounds) {
  auto content = OpenContent::open(directory);
  if (!content) return fail(content.error());
  // All is kept, as a server keeps it: a virtual disk may take blocks that were written and freed before four times as
  // fast as fresh ones.
  const std::string plain_directory = directory + "/plain";
  std::filesystem::create_directories(plain_directory);
  const std::string answer = random_bytes(mib << 20);
  bench::Series ours;
  bench::Series plains;
  for (int i = 0; i < rounds; ++i) {
    {
      // A new one each time, so that what it still has to do for the last one is in nobody's way.
      bench::PlainRocksdb plain(fmt::format("{}/{}", plain_directory, i));
      const bench::Stopwatch watch;
      plain.keep(answer);
      plains.ms.push_back(watch.ms());
    }
    std::this_thread::sleep_for(kRest);
    ours.ms.push_back(content->keep(answer));
    std::this_thread::sleep_for(kRest);
  }
  return nlohmann::json{{"mib", mib}, {"content", figures(ours)}, {"plain", figures(plains)}};
}

Result<nlohmann::json> measure_beside(const std::string& directory, size_t mib, int rounds) {
  auto content = OpenContent::open(directory);
  if (!content) return fail(content.error());
  const std::string large = random_bytes(mib << 20);
  const std::string small = random_bytes(kSmallAnswerBytes);
  bench::Series alone;
  for (int i = 0; i < kSmallAnswersAlone; ++i) alone.ms.push_back(content->keep(small));

  std::array<bench::Series, 2> of_writers;
  std::atomic<size_t> writing = of_writers.size();
  std::vector<std::thread> writers;
  for (bench::Series& series : of_writers) {
    writers.emplace_back([&] {
      for (int i = 0; i < rounds; ++i) series.ms.push_back(content->keep(large));
      --writing;
    });
  }
  bench::Series beside;
  while (writing > 0) beside.ms.push_back(content->keep(small));
  for (std::thread& writer : writers) writer.join();
  bench::Series& larges = of_writers[0];
  larges.ms.insert(larges.ms.end(), of_writers[1].ms.begin(), of_writers[1].ms.end());
  const auto brief = [](const bench::Series& series) {
    return nlohmann::json{{"count", series.ms.size()},
                          {"p50_ms", series.quantile(0.5)},
                          {"p99_ms", series.quantile(0.99)},
                          {"max_ms", series.quantile(1)}};
  };
  return nlohmann::json{
      {"mib", mib}, {"large", brief(larges)}, {"small", brief(beside)}, {"small_alone", brief(alone)}};
}

int report(const Result<nlohmann::json>& measured) {
  if (!measured) {
    std::fprintf(stderr, "%s\n", measured.error().message.c_str());
    return 1;
  }
  std::printf("%s\n", measured->dump().c_str());
  return 0;
}

}  // namespace
}  // namespace kcoral::store

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr,
                 "store_bench DIRECTORY [SUBMITTERS] [REQUESTS] [PROGRAM_BYTES]\n"
                 "store_bench DIRECTORY content [MIB] [ROUNDS]\n"
                 "store_bench DIRECTORY beside [MIB] [ROUNDS]\n");
    return 1;
  }
  const auto number = [&](int index, int otherwise) { return argc > index ? std::atoi(argv[index]) : otherwise; };
  const std::string_view part = argc > 2 ? argv[2] : "";
  if (part == "content" || part == "beside") {
    const auto mib = static_cast<size_t>(number(3, 64));
    const auto measure = part == "content" ? kcoral::store::measure_content : kcoral::store::measure_beside;
    return kcoral::store::report(measure(argv[1], mib, number(4, 12)));
  }
  kcoral::store::measure(argv[1], number(2, 8), number(3, 4000), static_cast<size_t>(number(4, 1024)));
  return 0;
}
