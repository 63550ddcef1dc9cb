// Every bound of the service in one place, each with its reason. Bounds that an operator may change are defaults here
// and settings in server/.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kcoral::limits {

using namespace std::chrono_literals;

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;

// --- the program (contract section 2) ---
inline constexpr int kJsonDepthMax = 128;          // contract: nesting at most 128
inline constexpr size_t kInstructionsMax = 65536;  // keeps the bookkeeping of one program below some tens of MiB
inline constexpr size_t kIdBytesMax = 1024;        // ids and keys travel in every audit record
inline constexpr size_t kLabelsMax = 64;
inline constexpr size_t kLabelBytesMax = 256;  // contract: short strings
inline constexpr double kTimeoutSecondsDefault = 300;
inline constexpr double kTimeoutSecondsMax = 3600;  // default of --max-timeout-seconds
inline constexpr uint64_t kOutputLimitBytesDefault = kMiB;
inline constexpr uint64_t kOutputLimitBytesMax = 16 * kMiB;  // default of --max-output-bytes
inline constexpr int kGpuCountMax = 8;
inline constexpr int kPriorityMax = 100;
inline constexpr int kAttemptsMax = 10;
inline constexpr int kAttemptsDefaultExecute = 1;
inline constexpr int kAttemptsDefaultRequests = 2;
// A blob is a descriptor in three processes; folders of headers have a few thousand files.
inline constexpr size_t kBlobsMax = 8192;
inline constexpr size_t kTensorDimensionsMax = 64;  // PyTorch's own bound; NumPy's is 32 or 64

// --- paths (section 3) ---
inline constexpr size_t kPathBytesMax = 4096;
inline constexpr size_t kPathComponentBytesMax = 255;

// --- values and errors (sections 4 and 6) ---
inline constexpr int kValueDepthMax = 128;
inline constexpr size_t kTracebackBytesMax = 8192;
inline constexpr size_t kErrorMessageBytesMax = 16 * kKiB;  // an assertion's message is read by a person

// --- HTTP ---
inline constexpr size_t kHeadBytesMax = 64 * kKiB;     // request line and headers
inline constexpr size_t kPartHeadBytesMax = 8 * kKiB;  // headers of one multipart part
inline constexpr size_t kBoundaryBytesMax = 70;        // RFC 2046
inline constexpr size_t kMediaTypeParametersMax = 16;  // of the request's own; each is compared with all before it
inline constexpr size_t kBoundaryLineBytesMax = 256;   // white space after a boundary is legal, and nobody sends any
inline constexpr size_t kChunkLineBytesMax = kKiB;     // a chunk's size with its extensions, which nobody reads
inline constexpr size_t kClientNameBytesMax = 128;
inline constexpr uint64_t kRequestBytesMax = 256 * kMiB;   // default of --max-request-bytes
inline constexpr uint64_t kResponseBytesMax = 256 * kMiB;  // default of --max-response-bytes
// Default. Program texts and blobs of all bodies that the store has not yet taken over: four of the largest. More in
// memory would not get through sooner, since the store writes some 400 MB/s (ARCHITECTURE.md).
inline constexpr uint64_t kBodiesBytesMax = 1024 * kMiB;
// Their blobs, each a descriptor and up to a page more than its content: four bodies with as many as they may have.
inline constexpr size_t kStagedBlobsMax = 4 * kBlobsMax;
// Read from a connection at a time. It is also what one connection can leave unread in our memory while it waits.
inline constexpr size_t kReadBytes = 256 * kKiB;
inline constexpr auto kHeadTimeout = 30s;       // from its first byte
inline constexpr auto kBodyStallTimeout = 60s;  // without one byte of progress, either way
inline constexpr auto kIdleTimeout = 75s;       // a kept-alive connection without a request
inline constexpr auto kHalfClosedProbe = 1s;    // whether a client that closed its sending half still waits
// How long a client that got its answer before it sent its whole body may go on sending before it is cut off: it should
// read the answer first, and one in the middle of a large body reads only after that.
inline constexpr auto kLingerSilence = 5s;
inline constexpr auto kLingerTotal = 30s;
inline constexpr size_t kConnectionsMax = 10000;
inline constexpr int kRetryAfterSeconds = 5;     // said with every busy: a server restarts in less
inline constexpr auto kLongPollMax = 60s;        // contract: ?wait=
inline constexpr size_t kHistoryPageMax = 1000;  // requests; a megabyte or so of JSON
inline constexpr size_t kHistoryPageDefault = 50;
// How long a program runs on whose client went away. Whoever lost a connection is back by then; whoever gave up should
// not keep others from the GPU. Default of --abandoned-after-seconds.
inline constexpr auto kAbandonedAfter = 10s;
inline constexpr uint64_t kQueuePositionMax = 10000;  // contract
// Defaults of --max-queued-requests and --max-queued-per-client. A queued request takes some 300 bytes of memory.
inline constexpr uint64_t kQueuedRequestsMax = 1'000'000;
inline constexpr uint64_t kQueuedRequestsOfClientMax = 100'000;
// Clients that GET /metrics names: each is a time series, and a client chooses its name. So many are counted to know
// which those are; they take some 200 KiB.
inline constexpr size_t kClientsNamedMax = 20;
inline constexpr size_t kClientsCountedMax = 1000;

// --- waiting and ending ---
inline constexpr auto kWorkerWait = 1800s;  // default of --worker-wait-timeout-seconds; /execute only
inline constexpr auto kLeaseWait = 1800s;   // default of --lease-wait-timeout-seconds
inline constexpr auto kContextWait = 30s;   // for making a CUDA context, which takes 0.1 s on an idle GPU
// For the lease under which the processes of an answered program end: longer than a measurement lasts, as a rule. What
// the program left running has no deadline any more, and its slot is out of use.
inline constexpr auto kContextEndWait = 30s;
// How long programs wait for a quarantined device before they are told: most come back within seconds, since a driver
// is often late to forget a process, and who waited that long had rather hear why than wait on in silence.
inline constexpr auto kQuarantineGrace = 30s;
inline constexpr uint64_t kDeviceIdMax = 1023;
inline constexpr auto kKillWait = 10s;       // contract: then the slot is quarantined
inline constexpr auto kShutdownGrace = 30s;  // default of --shutdown-grace-seconds
inline constexpr auto kSlotStart = 120s;     // zygote with its preloads (PyTorch from a cold disk: tens of seconds)
inline constexpr size_t kStandbyMax = 16;    // of one slot; more would only hold memory
// Of a runtime that puts itself right for another program: a fork takes its place sooner than that, and somebody waits.
inline constexpr auto kRecycleWait = 500ms;
inline constexpr int kStartsBeforeReadyMax = 3;  // of an executor that was never ready: then its host is at fault

// --- audit records of single instructions (section 9) ---
// How long each station on the way may keep some back to share a frame or a commit; together below the contract's 100
// ms.
inline constexpr auto kRecordsDelayExecutor = 30ms;
inline constexpr auto kRecordsDelayScheduler = 30ms;
inline constexpr auto kRecordsDelayStore = 30ms;

// --- frames between server, executor and runtime (docs/frames.md) ---
inline constexpr size_t kFrameBytesMax = 64 * kKiB;  // below the default socket buffer, so that a frame is one packet
inline constexpr size_t kFrameFdsMax = 64;           // the kernel allows 253 in one message
inline constexpr size_t kFramesPerTurn = 64;         // taken from one peer before others on the loop have their turn
inline constexpr size_t kFramesArrivedMax = 2048;    // more than a default socket holds; a peer may go on sending
inline constexpr size_t kFramesQueuedMax = 1024;     // grants for a runtime that asks for leases and does not read
inline constexpr size_t kFrameMessageBytesMax = 8 * kKiB;  // six bytes each as control characters: below a frame's size

// --- what a program makes an executor hold ---
// Text and data of everything that one program returns, before the answer's own limit applies. One value alone may use
// it up, so the runtime refuses a value beyond it before it is sent.
inline constexpr uint64_t kReturnedBytesMax = 1024 * kMiB;
inline constexpr size_t kPartsMax = 65536;                 // files of all returned folders together
inline constexpr uint64_t kErrorDocumentBytesMax = kMiB;   // its message and traceback are cut when they are rendered
inline constexpr size_t kCudaCallBytesMax = 256;           // of a gpu_access error: the function's name
inline constexpr size_t kCudaLocationBytesMax = 4 * kKiB;  // and where it was called, whose path is the program's
inline constexpr size_t kShownBytesMax = 4 * kKiB;         // of what a process said, in a message or a log line
inline constexpr size_t kCapturedBytesMax = kMiB;          // of each stream of a program that is asked something

// --- what is kept of requests that have ended ---
inline constexpr uint64_t kHistoryDaysDefault = 30;
inline constexpr uint64_t kArtifactCapacityBytesDefault = 32 * 1024 * kMiB;  // some 500 answers of 64 MiB

// --- content ---
inline constexpr size_t kChunkBytes = kMiB;  // of blobs and artifacts in RocksDB (ARCHITECTURE.md)
// From here on content gets a table file of its own instead of going through the log. At 8 MiB that takes half as long,
// at 4 MiB two thirds, and at 2 MiB longer; and every file makes the next one dearer (ARCHITECTURE.md).
inline constexpr uint64_t kTableFileBytesMin = 8 * kMiB;
inline constexpr uint64_t kBlobCacheBytesDefault = 1024 * kMiB;  // hot memfds
inline constexpr size_t kProgramCompressFromBytes = 16 * kKiB;
// Answers up to this size are kept with their request's row, larger ones as artifacts. A commit that carries one costs
// as much as one without, while an artifact costs a sync of its own.
inline constexpr uint64_t kAnswerInRowBytesMax = 16 * kKiB;
// How often a request is put back into the queue because memory or descriptors are too short to load what it needs;
// then it fails, for it may need more than this server will ever have, and others wait behind it.
inline constexpr int kPutBacksMax = 10;

// --- backups ---
// So much of a copy is written before the disk is waited for: a commit that syncs meanwhile waits for no more than
// that.
inline constexpr uint64_t kBackupSyncBytes = 8 * kMiB;
inline constexpr size_t kControlLineBytesMax = 32 * kKiB;  // a path, each byte of which may take six as JSON
inline constexpr auto kControlPatience = 5s;               // for the line of whoever connects to the control socket

}  // namespace kcoral::limits
