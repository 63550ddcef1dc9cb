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
inline constexpr size_t kClientNameBytesMax = 128;
inline constexpr uint64_t kRequestBytesMax = 256 * kMiB;   // default of --max-request-bytes
inline constexpr uint64_t kResponseBytesMax = 256 * kMiB;  // default of --max-response-bytes
inline constexpr size_t kSendBufferBytes = kMiB;           // of one answer held outside memfds
inline constexpr auto kHeadTimeout = 30s;                  // from its first byte
inline constexpr auto kBodyStallTimeout = 60s;             // without one byte of progress, either way
inline constexpr auto kIdleTimeout = 75s;                  // a kept-alive connection without a request
inline constexpr size_t kConnectionsMax = 10000;

// --- waiting and ending ---
inline constexpr auto kWorkerWait = 1800s;   // default of --worker-wait-timeout-seconds; /execute only
inline constexpr auto kKillWait = 10s;       // contract: then the slot is quarantined
inline constexpr auto kShutdownGrace = 30s;  // default of --shutdown-grace-seconds
inline constexpr auto kSlotStart = 120s;     // zygote with its preloads (PyTorch from a cold disk: tens of seconds)

// --- frames between server, executor and runtime (docs/frames.md) ---
inline constexpr size_t kFrameBytesMax = 64 * kKiB;  // below the default socket buffer, so that a frame is one packet
inline constexpr size_t kFrameFdsMax = 64;           // the kernel allows 253 in one message
inline constexpr uint64_t kReturnedBytesMax =
    1024 * kMiB;                            // one value in memory, before the answer's own limit applies
inline constexpr size_t kPartsMax = 65536;  // files of all returned folders together

// --- content ---
inline constexpr size_t kChunkBytes = kMiB;                      // of blobs and artifacts in RocksDB (ARCHITECTURE.md)
inline constexpr uint64_t kBlobCacheBytesDefault = 1024 * kMiB;  // hot memfds
inline constexpr size_t kProgramCompressFromBytes = 16 * kKiB;

}  // namespace kcoral::limits
