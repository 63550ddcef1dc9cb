// What a long queue costs: the same operations of the store behind few queued requests and behind many, in one run.
//
//   queue_bench DIRECTORY [ROWS [CYCLES [random]]]
//
// ROWS (1,000,000) requests of a thousand clients are queued, and stay so, in two steps: the first thousand, then the
// rest. Before and after each step it measures
//   cycle    a request of higher priority from admission to its answer, CYCLES (20,000) of them from 64 submitters; one
//            in eight that run is the oldest of the queue instead, and "per_second" and "cpu_us" count these, too
// and after each
//   admit    one request that stays queued, one after another
//   status   of a queued request, with its place in the queue
//   history  50 requests: the newest, those of one client, those with one label, queued ones, a page deep inside
// and at the end how long a store needs until it has recovered, with all of them queued. Lines of JSON. Requests have
// ids that ascend with time, as the server and its clients make them; with "random" they have none in common.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <future>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/instant_executors.h"
#include "bench/samples.h"
#include "store/store.h"

namespace kcoral::bench {
namespace {

using store::HistoryQuery;
using store::Store;

constexpr int kFewRows = 1000;
constexpr int kClients = 1000;
constexpr int kSubmitters = 64;
constexpr int kExecutors = 64;
constexpr int kRepeats = 400;
constexpr size_t kProgramBytes = 1024;

// A label is of one client, and of a few hundred of its requests.
constexpr uint64_t kSubmissionsOfASweep = 200'000;

bool ids_are_random = false;
std::atomic<uint64_t> submitted{0};

store::Submission submission(std::string client, int priority) {
  store::Submission made;
  made.request_id = ids_are_random ? Uuid::random() : Uuid::made_at(Clock::system().wall_now());
  made.client = std::move(client);
  made.peer = "127.0.0.1:1";
  made.synchronous = false;
  made.program_text = std::string(kProgramBytes, 'p');
  made.program_sha256 = Sha256::of(made.program_text);
  made.program.options.priority = priority;
  made.program.options.labels["sweep"] = fmt::format("{}-{}", made.client, submitted++ / kSubmissionsOfASweep);
  return made;
}

/// Waits for the callback of one call.
template <typename T, typename Call>
T wait_for(Call call) {
  std::promise<T> promise;
  call([&promise](T value) { promise.set_value(std::move(value)); });
  return promise.get_future().get();
}

Uuid admit(Store& store, store::Submission what) {
  const Uuid id = what.request_id;
  const auto admission = wait_for<Result<store::Admission>>([&](auto done) { store.admit(std::move(what), done); });
  KCORAL_CHECK(admission);
  return id;
}

/// `count` times `work(i)`, spread over the submitters.
template <typename Work>
Series spread(int count, Work work) {
  std::vector<Series> each(kSubmitters);
  std::atomic<int> next{0};
  const Stopwatch whole;
  std::vector<std::thread> threads;
  for (Series& series : each) {
    threads.emplace_back([&] {
      for (int i = next++; i < count; i = next++) {
        const Stopwatch watch;
        work(i);
        series.ms.push_back(watch.ms());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Series all;
  for (const Series& series : each) all.ms.insert(all.ms.end(), series.ms.begin(), series.ms.end());
  all.seconds = whole.ms() / 1000;
  return all;
}

template <typename Work>
Series repeated(int count, Work work) {
  Series series;
  const Stopwatch whole;
  for (int i = 0; i < count; ++i) {
    const Stopwatch watch;
    work(i);
    series.ms.push_back(watch.ms());
  }
  series.seconds = whole.ms() / 1000;
  return series;
}

nlohmann::json brief(const Series& series) {
  return {{"per_second", series.per_second()}, {"p50_ms", series.quantile(0.5)}, {"p99_ms", series.quantile(0.99)}};
}

void fill(Store& store, int rows, std::vector<Uuid>& queued) {
  std::vector<Uuid> ids(static_cast<size_t>(rows));
  spread(rows, [&](int i) {
    ids[static_cast<size_t>(i)] = admit(store, submission(fmt::format("client-{}", i % kClients), 0));
  });
  queued.insert(queued.end(), ids.begin(), ids.end());
}

nlohmann::json measure_history(Store& store, const HistoryQuery& query) {
  return brief(repeated(kRepeats, [&](int) {
    KCORAL_CHECK(wait_for<Result<store::HistoryPage>>([&](auto done) { store.history(query, done); }));
  }));
}

nlohmann::json measure_histories(Store& store) {
  HistoryQuery newest;
  HistoryQuery of_client;
  of_client.client = "client-7";
  HistoryQuery labelled;
  labelled.label.emplace("sweep", "client-77-0");
  HistoryQuery queued;
  queued.state = schema::State::kQueued;
  HistoryQuery deep;
  for (int i = 0; i < 10; ++i) {
    const auto page = wait_for<Result<store::HistoryPage>>([&](auto done) { store.history(deep, done); });
    deep.after = page->next;
  }
  return {{"newest", measure_history(store, newest)},
          {"client", measure_history(store, of_client)},
          {"label", measure_history(store, labelled)},
          {"queued", measure_history(store, queued)},
          {"deep", measure_history(store, deep)}};
}

double ended_of(const store::Figures& figures) {
  return static_cast<double>(std::accumulate(figures.ended.begin(), figures.ended.end(), uint64_t{0}));
}

double process_cpu_ms() { return static_cast<double>(std::clock()) * 1000 / CLOCKS_PER_SEC; }

nlohmann::json commits_between(const store::Figures& before, const store::Figures& after) {
  const auto commits = [](const store::Figures& figures) {
    return std::accumulate(figures.committed.counts.begin(), figures.committed.counts.end(), 0.0);
  };
  const double count = commits(after) - commits(before);
  return {
      {"operations_a_commit", static_cast<double>(after.operations_committed - before.operations_committed) / count},
      {"mean_commit_ms", (after.committed.sum_seconds - before.committed.sum_seconds) * 1000 / count}};
}

nlohmann::json measure(Store& store, InstantExecutors& executors, const std::vector<Uuid>& queued, int cycles) {
  nlohmann::json figures = {{"queued", store.counts().queued}};
  const store::Figures before = store.figures();
  const double cpu_ms_before = process_cpu_ms();
  const Series series = spread(cycles, [&](int) {
    executors.admit_one();
    const Uuid id = admit(store, submission("bench", 1));
    KCORAL_CHECK(wait_for<Result<Store::AnswerPtr>>([&](auto done) { store.watch(id, done); }));
  });
  const store::Figures after = store.figures();
  const double ended = ended_of(after) - ended_of(before);
  figures["cycle"] = brief(series);
  figures["cycle"]["per_second"] = ended / series.seconds;
  figures["cycle"]["cpu_us"] = (process_cpu_ms() - cpu_ms_before) * 1000 / ended;
  figures["cycle"].update(commits_between(before, after));
  if (queued.empty()) return figures;
  figures["admit"] = brief(repeated(kRepeats, [&](int) { admit(store, submission("client-7", 0)); }));
  figures["status"] = brief(repeated(kRepeats, [&](int i) {
    const Uuid& id = queued[queued.size() - 1 - static_cast<size_t>(i)];
    KCORAL_CHECK(wait_for<Result<store::RequestStatus>>([&](auto done) { store.status(id, done); }));
  }));
  figures["history"] = measure_histories(store);
  return figures;
}

std::unique_ptr<Store> open(const std::string& directory, uint64_t rows) {
  store::StoreConfig config{.data_dir = directory};
  config.queued_requests_max = 2 * rows + 100'000;
  auto opened = store::open_store(config, Clock::system());
  KCORAL_CHECK(opened);
  return std::move(*opened);
}

void run(const std::string& directory, int rows, int cycles) {
  std::vector<Uuid> queued;
  {
    auto store = open(directory, static_cast<uint64_t>(rows));
    KCORAL_CHECK(store->recover());
    InstantExecutors executors(*store, kExecutors);
    executors.ration();
    store->serve(executors);
    for (const int more : {0, kFewRows, rows - kFewRows}) {
      const Stopwatch filling;
      fill(*store, more, queued);
      const double fill_ms = filling.ms();
      nlohmann::json figures = measure(*store, executors, queued, cycles);
      if (more > 0) figures["filled_per_second"] = more / fill_ms * 1000;
      std::printf("%s\n", figures.dump().c_str());
      std::fflush(stdout);
    }
    store->close();
  }
  const Stopwatch recovering;
  auto store = open(directory, static_cast<uint64_t>(rows));
  KCORAL_CHECK(store->recover());
  std::printf("%s\n",
              nlohmann::json{{"queued", store->counts().queued}, {"recovered_ms", recovering.ms()}}.dump().c_str());
  store->close();
}

}  // namespace
}  // namespace kcoral::bench

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "queue_bench DIRECTORY [ROWS [CYCLES [random]]]\n");
    return 1;
  }
  const auto number = [&](int index, int otherwise) { return argc > index ? std::atoi(argv[index]) : otherwise; };
  kcoral::bench::ids_are_random = argc > 4 && std::string_view(argv[4]) == "random";
  kcoral::bench::run(argv[1], number(2, 1'000'000), number(3, 20'000));
  return 0;
}
