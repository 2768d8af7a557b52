#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "io/read_batch.h"

namespace thimble {

/// Reads whose data is needed sooner come first. Lower values win.
enum class ReadPriority : uint8_t {
  kDemand,  // the forward pass waits for it, or soon will: the chosen experts
  kAhead,   // the trunk, in reading order
  kLikely,  // what will most likely be demanded: experts of a layer yet to come
};

/// One read of [offset, offset + bytes) of a file into caller-owned memory. Offsets, lengths and
/// memory are multiples of BlockReader::kAlignment, so the range may pass the end of the file; of
/// its bytes the first `needed_bytes` must exist. What the rest of the memory holds afterwards is
/// not defined.
struct ReadRequest {
  uint32_t file = 0;  // index into the files that the reader was opened with
  uint64_t offset = 0;
  size_t bytes = 0;
  size_t needed_bytes = 0;
  std::byte* out = nullptr;
};

/// Asynchronous positional reads from a fixed set of files. Each request is completed exactly once,
/// whole or as an error, in any order. Submit is called from one thread; it does not block. The
/// memory of a request must stay until its batch is done; the destructor completes what is in
/// flight.
class BlockReader {
 public:
  static constexpr size_t kAlignment = 4096;

  virtual ~BlockReader() = default;
  /// Adds `requests` to `batch`. A failure is reported through the batch, naming file and offset.
  virtual void Submit(std::span<const ReadRequest> requests, ReadPriority priority,
                      ReadBatch& batch) = 0;
  /// Takes back those likely requests of `batch` that have not been begun, as if they were done,
  /// and returns how many. Called from the thread that submits. A reader that begins all at once
  /// has none.
  virtual size_t Withdraw(ReadBatch& batch) {
    static_cast<void>(batch);
    return 0;
  }
};

}  // namespace thimble
